"""Reading problems from files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from ebft.errors import DataError
from ebft.problems.catalog import load_problems
from tests.problems.rows import HUMANEVAL


@pytest.mark.parametrize("field", ["task_id", "prompt", "entry_point", "test"])
def test_missing_fields_are_named(field: str, tmp_path: Path) -> None:
    row = {name: value for name, value in HUMANEVAL.items() if name != field}
    file = tmp_path / "problems.jsonl"
    file.write_text(json.dumps(HUMANEVAL) + "\n\n" + json.dumps(row) + "\n")
    with pytest.raises(DataError, match=f"line 3 has no field '{field}'"):
        load_problems("humaneval", str(file))


def test_files(tmp_path: Path) -> None:
    zipped = tmp_path / "problems.jsonl.gz"
    zipped.write_bytes(gzip.compress((json.dumps(HUMANEVAL) + "\n").encode()))
    assert [problem.task_id for problem in load_problems("humaneval", str(zipped))] == ["Own/0"]
    zipped.write_bytes(zipped.read_bytes()[:-12])
    with pytest.raises(DataError, match="damaged"):
        load_problems("humaneval", str(zipped))
    twice = tmp_path / "twice.jsonl"
    twice.write_text((json.dumps(HUMANEVAL) + "\n") * 2)
    with pytest.raises(DataError, match="line 2: the task 'Own/0' is already in"):
        load_problems("humaneval", str(twice))
