"""Reading samples made elsewhere, for `ebft score`: each must belong to a known problem."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from ebft.errors import DataError, kind_of, nearest
from ebft.problems.problem import Problem
from ebft.problems.records import read_records
from ebft.problems.translation import Pair, row_id, translation_rows
from ebft.tasks.scoring import Sample


def read_samples(source: str, problems: Sequence[Problem]) -> list[Sample]:
    """Programs in the file's order, each with its problem."""
    by_id: dict[str, list[Problem]] = defaultdict(list)
    for problem in problems:
        by_id[problem.task_id].append(problem)
    if not Path(source).expanduser().is_file():
        raise DataError(f"{source}: no such file")
    counted: Counter[tuple[str, str]] = Counter()
    samples: list[Sample] = []
    for record in read_records(source):
        name = record.row.get("task_id", record.row.get("name"))
        if name is None:
            raise DataError(f"{record.where} has neither 'task_id' nor 'name'")
        if isinstance(name, bool) or not isinstance(name, (str, int)):
            raise DataError(f"{record.where}: the field 'task_id' is {kind_of(name)}, not a string or number")
        task_id = _known(str(name), by_id)
        if task_id is None:
            raise DataError(f"{record.where}: unknown task {str(name)[:100]!r}{nearest(str(name)[:100], by_id)}")
        found = by_id[task_id]
        if len(found) > 1:
            language = record.row.get("language")
            found = [problem for problem in found if problem.language == language]
            if not found:
                raise DataError(
                    f"{record.where}: the task {task_id!r} exists in several languages; add a field 'language', or "
                    "choose one with --language"
                )
        counted[found[0].task_id, found[0].language] += 1
        number = counted[found[0].task_id, found[0].language] - 1
        finish = record.row.get("finish")  # of `ebft eval`'s own files
        samples.append(Sample(found[0], number, record.text("completion"), finish if isinstance(finish, str) else ""))
    return samples


def _known(name: str, by_id: Mapping[str, list[Problem]]) -> str | None:
    """The problem's own name; `MBPP/11` and `Mbpp/11` also stand for 11."""
    if name in by_id:
        return name
    start, _, rest = name.partition("/")
    return rest if start.lower() == "mbpp" and rest in by_id else None


def read_translations(source: str, pairs: Sequence[Pair], pairs_source: str) -> list[list[str]]:
    """The translations of each pair, at least one: rows with `task_id` (or `name`, `id`) and `completion`."""
    texts: dict[str, list[str]] = {pair.key: [] for pair in pairs}
    for record in translation_rows(source, "test"):
        where, row = record.where, record.row
        key = row_id(row)
        if key is None:
            raise DataError(f"{where} has no field 'task_id' (or 'name'); it has {', '.join(map(repr, row)) or 'none'}")
        if not isinstance(row.get("completion"), str):
            raise DataError(f"{where} has no text in the field 'completion'")
        if key not in texts:
            raise DataError(f"{where} is for the unknown task {key!r}; {pairs_source} has {_some(list(texts))}")
        texts[key].append(row["completion"])
    if missing := [key for key, of_pair in texts.items() if not of_pair]:
        raise DataError(f"{source} has no sample for {len(missing)} of {len(texts)} tasks: {_some(missing)}")
    return list(texts.values())


def _some(keys: Sequence[str]) -> str:
    return ", ".join(keys[:3]) + (", ..." if len(keys) > 3 else "")
