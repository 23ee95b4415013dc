"""Differences of code tasks by problem, on outcomes written by hand."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest

from ebft.evaluate import differences
from ebft.runtime.files import write_jsonl

Passed = dict[str, list[list[int]]]  # by set and problem, of each sample


def evaluated(folder: Path, passed: Passed, task: str = "humaneval") -> dict[str, Any]:
    """Results of sets of problems, with a list of outcomes for each problem, and the files beside them. What does not
    pass greedily is no program."""
    folder.mkdir()
    parts = []
    for name, problems in passed.items():
        for decoding, samples in ("greedy", slice(1)), ("samples", slice(None)):
            rows = [
                {
                    "task_id": f"{name}/{number}",
                    "status": "passed" if outcome else "failed",
                    "completion": "return 1" if outcome else "",
                    "finish": "end",
                }
                for number, outcomes in enumerate(problems)
                for outcome in outcomes[samples]
            ]
            for ending in (".scores.samples.jsonl", ".jsonl"):
                write_jsonl(folder / f"{name}.{decoding}{ending}", rows)
        metrics = {key: {"value": 0.5} for key in ("greedy_pass@1", "greedy_empty", "pass@1", "pass@2")}
        parts.append({"name": name, "language": "python", "metrics": metrics})
    return {"tasks": {task: parts[0] if len(parts) == 1 else {"metrics": {}, "parts": parts}}}


def moved(
    tmp_path: Path, one: dict[str, list[list[int]]], two: dict[str, list[list[int]]], task: str = "humaneval"
) -> Any:
    folders = {"one": tmp_path / "one", "two": tmp_path / "two"}
    results = {name: evaluated(folders[name], passed, task) for name, passed in (("one", one), ("two", two))}
    return differences.against_first(results, folders)["two"]


def error(values: list[float]) -> float:
    return statistics.stdev(values) / len(values) ** 0.5


def test_shares_of_problems_are_paired_by_problem(tmp_path: Path) -> None:
    one = {"humaneval": [[1, 1], [0, 0], [0, 1], [0, 0]]}
    two = {"humaneval": [[1, 1], [1, 0], [0, 1], [0, 0]]}
    assert moved(tmp_path, one, two) == {
        ("humaneval", "greedy_pass@1"): (0.25, pytest.approx(error([0, 1, 0, 0]))),
        ("humaneval", "greedy_empty"): (-0.25, pytest.approx(error([0, 1, 0, 0]))),
        ("humaneval", "pass@1"): (0.125, pytest.approx(error([0, 0.5, 0, 0]))),
        ("humaneval", "pass@2"): (0.25, pytest.approx(error([0, 1, 0, 0]))),
    }


def test_the_mean_over_languages(tmp_path: Path) -> None:
    one = {"m-js": [[0, 0], [0, 0]], "m-go": [[1, 1], [1, 1], [0, 0]]}
    two = {"m-js": [[1, 1], [0, 0]], "m-go": [[1, 1], [0, 0], [0, 0]]}
    found = moved(tmp_path, one, two, "multipl-e")
    js, go = error([1, 0]), error([0, -1, 0])
    assert found["multipl-e", "m-js pass@1"] == (0.5, pytest.approx(js))
    assert found["multipl-e", "m-go pass@1"] == (pytest.approx(-1 / 3), pytest.approx(go))
    assert found["multipl-e", "pass@1"] == (pytest.approx((0.5 - 1 / 3) / 2), pytest.approx((js**2 + go**2) ** 0.5 / 2))


def test_other_problems_are_not_paired(tmp_path: Path) -> None:
    assert moved(tmp_path, {"humaneval": [[1, 1]]}, {"humaneval": [[1, 1], [1, 0]]}) == {}


def test_other_text_is_not_paired(tmp_path: Path) -> None:
    record = {"sequence": 0, "tokens": 2, "log_probs": -4.0}
    results = {}
    for name, text in ("one", "aa"), ("two", "aa"), ("three", "bb"):
        (tmp_path / name).mkdir()
        write_jsonl(tmp_path / name / "calibration.jsonl", [record])
        results[name] = {"tasks": {"calibration": {"text": text, "sequences": 1}}}
    found = differences.against_first(results, {name: tmp_path / name for name in results})
    assert [len(of_model) for of_model in found.values()] == [1, 0]
