from __future__ import annotations

from pathlib import Path

import pytest

from ebft.errors import DataError
from ebft.evaluate.sample_files import read_samples, read_translations
from tests.problems.pairs import PAIRS, write
from tests.sandbox.attacks.others import own_problem
from tests.sandbox.sandboxed import ADD


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"task_id": "9", "completion": "x"}', "line 5 is for the unknown task '9'"),
        ('{"completion": "x"}', "line 5 has no field 'task_id'"),
        ('{"task_id": "1", "text": "x"}', "line 5 has no text in the field 'completion'"),
        ('{"task_id": "1", "completion": ', "line 5 is not valid JSON"),
        ("[1]", "line 5 is a list, not an object"),
    ],
)
def test_bad_translations(line: str, message: str, tmp_path: Path) -> None:
    file = Path(write(tmp_path / "samples.jsonl", [{"task_id": p.key, "completion": "x"} for p in PAIRS]))
    file.write_text(file.read_text() + line + "\n")
    with pytest.raises(DataError, match=message):
        read_translations(str(file), PAIRS, "pairs.jsonl")


def test_missing_and_empty(tmp_path: Path) -> None:
    samples = write(tmp_path / "samples.jsonl", [{"task_id": "1", "completion": "x"}])
    with pytest.raises(DataError, match=r"no sample for 3 of 4 tasks: 2, 3, 4"):
        read_translations(samples, PAIRS, "pairs.jsonl")
    with pytest.raises(DataError, match="empty"):
        read_translations(write(tmp_path / "none.jsonl", []), PAIRS, "pairs.jsonl")
    with pytest.raises(DataError, match="no such file"):
        read_translations(str(tmp_path / "absent.jsonl"), PAIRS, "pairs.jsonl")


def test_programs_are_counted_by_problem_and_language(tmp_path: Path) -> None:
    problems = [ADD, own_problem("js"), own_problem("php")]
    rows = [("Own/0", "a"), ("own_php", "b"), ("Own/0", "c"), ("own_js", "d")]
    file = write(tmp_path / "samples.jsonl", [{"task_id": name, "completion": text} for name, text in rows])
    found = [(sample.problem.language, sample.number, sample.completion) for sample in read_samples(file, problems)]
    assert found == [("python", 0, "a"), ("php", 0, "b"), ("python", 1, "c"), ("js", 0, "d")]


def test_how_a_completion_ended_is_read_where_it_is_known(tmp_path: Path) -> None:
    rows = [{"task_id": ADD.task_id, "completion": "x", **more} for more in ({}, {"finish": "length"}, {"finish": 3})]
    samples = read_samples(write(tmp_path / "samples.jsonl", rows), [ADD])
    assert [sample.finish for sample in samples] == ["", "length", ""]
