from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ebft.config.evaluation import EvalOptions
from ebft.errors import DataError
from ebft.sandbox.box import Sandbox
from ebft.sandbox.python_tests import Outcome
from ebft.tasks import scoring
from ebft.tasks.code_task import code_sets
from tests.problems.pairs import write
from tests.problems.rows import HUMANEVAL


@pytest.fixture
def problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    def run_many(attempts: Any, *rest: Any) -> Any:
        for attempt in attempts:
            yield attempt, Outcome("passed" if attempt.answer == "right" else "failed")

    monkeypatch.setattr(scoring, "run_many", run_many)
    monkeypatch.setattr(Sandbox, "check", lambda self: None)
    return write(tmp_path / "problems.jsonl", [{**HUMANEVAL, "task_id": name} for name in ("a", "b", "c")])


def test_completions_are_scored_as_ebft_score_does(problems: str, tmp_path: Path) -> None:
    [problem_set] = code_sets("humaneval", EvalOptions(humaneval=problems, limit=2, unsafe_exec=True, timeout=3))
    assert list(problem_set.keys) == ["a", "b"]
    file = tmp_path / "humaneval.samples.jsonl"
    found = problem_set.score([["right", "wrong"] * 2, ["wrong"] * 4], file, [["stop"] * 4] * 2)
    assert found["metrics"]["pass@1"]["value"] == 0.25
    assert found["metrics"]["pass@4"]["value"] == 0.5
    assert "pass@16" not in found["metrics"]
    assert found["notes"] == [], "pass@16 was not asked for, and the problem beyond the limit neither"
    assert found["counts"]["problems"] == 2
    written = json.loads((tmp_path / "humaneval.samples.scores.json").read_text())
    assert written["task"] == "humaneval"
    assert written["settings"]["problems"] == problems
    assert written["settings"]["timeout"] == 3
    assert len((tmp_path / "humaneval.samples.scores.samples.jsonl").read_text().splitlines()) == 8


def test_mistakes_show_before_anything_is_generated(problems: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"--timeout -1\.0 must be a positive number"):
        code_sets("humaneval", EvalOptions(humaneval=problems, timeout=-1.0))
    with pytest.raises(DataError, match="leave js out of --languages, or add it"):
        code_sets("multipl-e", EvalOptions(multipl_e=str(tmp_path), languages=["js"]))


def test_a_score_of_zero_says_why(problems: str, tmp_path: Path) -> None:
    [problem_set] = code_sets("humaneval", EvalOptions(humaneval=problems, unsafe_exec=True))
    file = tmp_path / "humaneval.greedy.jsonl"
    found = problem_set.score([["  "], ["wrong"], [""]], file, [["end"], ["length"], ["stop"]])
    assert found["answers"] == {"empty": 2, "cut_off": 1, "with_syntax_errors": 0}
    [why] = found["notes"]
    assert why.startswith("the score is zero: of 3 answers 2 empty, 1 cut off, 0 with syntax errors. For example a: ")
    assert repr(HUMANEVAL["prompt"]) in why
    assert found["example"]["completion"] == "  "
    assert json.loads((tmp_path / "humaneval.greedy.scores.json").read_text())["example"] == found["example"]
