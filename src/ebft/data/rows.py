"""Rows, dictionaries one at a time: of JSONL, Parquet, CSV, plain text, a folder of these, a name on a dataset hub, or
a built-in: the standard library of the running Python (`stdlib-code`, `stdlib-functions`), and functions made up by
rule (`toy-functions`).
"""

from __future__ import annotations

import ast
import csv
import gzip
import json
import random
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from ebft.data.row_format import Row
from ebft.errors import DataError, first_line, nearest
from ebft.runtime.files import sha256_of
from ebft.runtime.machine import hub_unreachable

ROW_FILES = (".jsonl", ".ndjson", ".json", ".gz", ".parquet", ".csv", ".tsv")  # .gz: of JSON lines
TEXT_FILES = (".txt", ".md", ".rst", ".py")
LOOKED_AT = 20  # first rows of a source, which show what it is like
SPLITS = ("train", "validation", "valid", "val", "dev", "test", "eval")
TOY_SIZES = {"train": 8000, "validation": 300, "test": 200}


def read_rows(source: str, split: str = "train") -> Iterator[Row]:
    """The rows of a file, a folder, a built-in name or a hub name (`name:configuration`), in a fixed order. split: of a
    hub dataset, or of a folder whose files are named by split (`train.jsonl`, `train-0001.parquet`)."""
    if source in BUILTIN:
        return BUILTIN[source](split)
    check_source(source)
    files = _local_files(source, split)
    return (row for file in files for row in _read_file(file)) if files else iter(_from_hub(source, split))


def check_source(source: str) -> None:
    """What can only be a file or folder must be there, and a dataset of a hub that cannot be reached in the cache."""
    path = Path(source).expanduser()
    if source in BUILTIN or path.exists():
        return
    if path.suffix or source.startswith((".", "/", "~")):
        raise DataError(f"{source}: no such file or folder")
    if hub_unreachable():
        _from_hub(source, None)


def contents(source: str, split: str = "train") -> list[object]:
    """What changes when the rows of a source change, and only then: names and hashes of its files, read whole."""
    if source in BUILTIN:
        return [source, split, 1] if source == "toy-functions" else [source, sys.version]
    return [(file.name, sha256_of(file)) for file in _local_files(source, split)] or [source, split]  # a hub name


def _local_files(source: str, split: str) -> list[Path]:
    """None for a hub name."""
    path = Path(source).expanduser()
    if not path.is_dir():
        return [path] if path.is_file() else []
    files = sorted(file for file in path.rglob("*") if file.is_file() and file.suffix in ROW_FILES + TEXT_FILES)
    if not files:
        raise DataError(f"{path}: no data files in this folder; expected one of {', '.join(ROW_FILES + TEXT_FILES)}")

    def named_by(name: str) -> list[Path]:
        """`train.jsonl`, `train-0001.parquet`; not `train.py`, which in a folder of sources is just a module."""
        data = [file for file in files if file.suffix in (*ROW_FILES, ".txt")]
        return [file for file in data if re.fullmatch(rf"{re.escape(name)}([-_.].*)?", file.stem)]

    others = [name for name in SPLITS if named_by(name)]
    if others and not named_by(split):  # never validation on training files because of a name
        raise DataError(f"{path}: no files of the split {split!r}; there is {', '.join(map(repr, others))}")
    return named_by(split) or files


def _read_file(file: Path) -> Iterator[Row]:
    if file.stat().st_size == 0:
        raise DataError(f"{file}: the file is empty")
    try:
        if file.suffix in TEXT_FILES:
            yield {"text": file.read_text(encoding="utf-8")}
        elif file.suffix == ".parquet":
            import pyarrow.parquet

            for batch in pyarrow.parquet.ParquetFile(file).iter_batches(batch_size=1000):
                yield from batch.to_pylist()
        elif file.suffix in (".csv", ".tsv"):
            yield from _read_csv(file)
        else:
            yield from _read_json(file)
    except (ValueError, csv.Error, OSError, EOFError) as error:  # pyarrow's errors are these, too
        what = "not UTF-8 text: " if isinstance(error, UnicodeError) else ""
        raise DataError(f"{file}: {what}{first_line(error)}") from None


def _read_json(file: Path) -> Iterator[Row]:
    """A row on each line, or a list of rows. Not `datasets`: it adds the columns that a row does not have."""
    with (gzip.open if file.suffix == ".gz" else open)(file, "rt", encoding="utf-8-sig") as lines:
        whole = file.suffix == ".json" and lines.read(1024).lstrip().startswith("[")
        lines.seek(0)
        for number, part in enumerate([lines.read()] if whole else lines, 1):
            if not part.strip():
                continue
            try:
                found = json.loads(part)
                if "\\u" in part:  # half of a letter, which no tokenizer takes
                    json.dumps(found, ensure_ascii=False).encode()
                rows = [{**row} for row in (found if whole else [found])]
            except (ValueError, TypeError, RecursionError) as error:
                where = "the file" if whole else f"line {number}"
                raise DataError(f"{where} is not JSON with one row on each line: {first_line(error)}") from None
            yield from rows


def _read_csv(file: Path) -> Iterator[Row]:
    csv.field_size_limit(2**31 - 1)  # a document may be longer than the 128 KiB the module allows
    with file.open(newline="", encoding="utf-8-sig") as lines:
        header = lines.readline()
        lines.seek(0)
        likely = "\t" if file.suffix == ".tsv" else ",;\t"  # `;` of a spreadsheet
        separator = next((c for c in likely if c in header), likely[0])
        # strict: a quote that stands somewhere else than around a field would swallow the rows up to the next one.
        yield from csv.DictReader(lines, delimiter=separator, strict=True)


def _from_hub(name: str, split: str | None) -> Iterable[Row]:
    import datasets

    unreachable = hub_unreachable()
    path, _, configuration = name.partition(":")
    try:
        return datasets.load_dataset(path, configuration or None, split=split)
    except Exception as error:  # the library raises many kinds for "not there" and "no network"
        why = f"is no file, no built-in name and no dataset of the hub: {unreachable or first_line(error)}"
        raise DataError(f"{name} {why}{nearest(name, BUILTIN) or '; give a local copy'}") from None


def _stdlib_code(split: str) -> Iterator[Row]:
    """One document per module of the standard library, tests left out, in a fixed order."""
    root = Path(sysconfig.get_paths()["stdlib"])
    skip = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo", "__pycache__"}
    for file in sorted(p for p in root.rglob("*.py") if not skip & set(p.relative_to(root).parts)):
        yield {"text": file.read_text(encoding="utf-8", errors="replace"), "source": file.name}


def _stdlib_functions(split: str) -> Iterator[Row]:
    """Signature and docstring as the prompt, the body as the completion, for functions that have both."""
    for module in _stdlib_code(split):
        try:
            tree = ast.parse(module["text"])
        except SyntaxError:
            continue
        lines = module["text"].splitlines(keepends=True)
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not ast.get_docstring(node):
                continue
            begin, docstring_end, columns = node.lineno - 1, node.body[0].end_lineno, node.col_offset
            # A method stands as if it were at the top level.
            shown = [line[columns:] if line[:columns].isspace() else line for line in lines[begin : node.end_lineno]]
            split_at = (docstring_end or begin) - begin
            prompt, completion = "".join(shown[:split_at]), "".join(shown[split_at:])
            if len(node.body) > 1 and completion.strip():
                yield {"prompt": prompt, "completion": completion, "source": f"{module['source']}:{node.lineno}"}


def _toy_functions(split: str) -> Iterator[Row]:
    """One-line functions with unit tests, which a model of a few million parameters can learn. Rows have the fields of
    HumanEval and the body as `completion`: they serve training, rewards and evaluation. No two splits share one."""
    split = split if split in TOY_SIZES else "train"
    chance = random.Random(0)
    bodies: dict[str, str] = {}  # expression by words: all splits are drawn together, so that none share one
    while len(bodies) < sum(TOY_SIZES.values()):
        words, expression, is_sum = "x", "x", False
        for place in range(chance.choice((2, 3))):
            step, number = chance.choice(("plus", "minus", "times")), chance.randrange(2, 10)
            words += f"{',' if place else ''} {step} {number}"
            expression = f"({expression})" if step == "times" and is_sum else expression
            expression += f" {dict(plus='+', minus='-', times='*')[step]} {number}"
            is_sum = step != "times"
        bodies[words] = expression
    drawn = iter(bodies.items())
    parts = {name: list(islice(drawn, size)) for name, size in TOY_SIZES.items()}
    for number, (words, expression) in enumerate(parts[split]):
        name = "fghpqr"[number % 6]
        checks = (f"    assert candidate({x}) == {eval(expression, {'x': x})}\n" for x in (-60, 0, 3, 60))
        yield {
            "task_id": f"{split}/{number}",
            "prompt": f'def {name}(x):\n    """{words}"""\n',
            "completion": f"    return {expression}\n",
            "entry_point": name,
            "test": f"def check(candidate):\n{''.join(checks)}",
        }


BUILTIN = {"stdlib-code": _stdlib_code, "stdlib-functions": _stdlib_functions, "toy-functions": _toy_functions}
