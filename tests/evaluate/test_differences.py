"""Differences of code tasks by problem, on outcomes written by hand."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from ebft.evaluate import differences


def evaluated(folder: Path, passed: dict[str, list[list[int]]], task: str = "humaneval") -> dict[str, Any]:
    """Results of sets of problems, with a list of outcomes for each problem, and the files beside them."""
    folder.mkdir()
    parts = []
    for name, problems in passed.items():
        for decoding, samples in ("greedy", slice(1)), ("samples", slice(None)):
            rows = [
                {"task_id": f"{name}/{number}", "status": "passed" if outcome else "failed"}
                for number, outcomes in enumerate(problems)
                for outcome in outcomes[samples]
            ]
            file = folder / f"{name}.{decoding}.scores.samples.jsonl"
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        metrics = {key: {"value": 0.5} for key in ("greedy_pass@1", "pass@1", "pass@2")}
        parts.append({"name": name, "metrics": metrics})
    return {"tasks": {task: parts[0] if len(parts) == 1 else {"metrics": {}, "parts": parts}}}


def error(moved: list[float]) -> float:
    return statistics.stdev(moved) / len(moved) ** 0.5


def test_pass_at_k_is_paired_by_problem(tmp_path: Path) -> None:
    one = evaluated(tmp_path / "one", {"humaneval": [[1, 1], [0, 0], [0, 1], [0, 0]]})
    two = evaluated(tmp_path / "two", {"humaneval": [[1, 1], [1, 0], [0, 1], [0, 0]]})
    found = differences.against_first({"one": one, "two": two}, {"one": tmp_path / "one", "two": tmp_path / "two"})
    assert found["two"] == {
        ("humaneval", "greedy_pass@1"): (0.25, pytest.approx(error([0, 1, 0, 0]))),
        ("humaneval", "pass@1"): (0.125, pytest.approx(error([0, 0.5, 0, 0]))),
        ("humaneval", "pass@2"): (0.25, pytest.approx(error([0, 1, 0, 0]))),
    }


def test_the_mean_over_languages(tmp_path: Path) -> None:
    one = evaluated(tmp_path / "one", {"m-js": [[0, 0], [0, 0]], "m-go": [[1, 1], [1, 1], [0, 0]]}, "multipl-e")
    two = evaluated(tmp_path / "two", {"m-js": [[1, 1], [0, 0]], "m-go": [[1, 1], [0, 0], [0, 0]]}, "multipl-e")
    found = differences.against_first({"one": one, "two": two}, {"one": tmp_path / "one", "two": tmp_path / "two"})[
        "two"
    ]
    js, go = error([1, 0]), error([0, -1, 0])
    assert found["multipl-e", "m-js pass@1"] == (0.5, pytest.approx(js))
    assert found["multipl-e", "m-go pass@1"] == (pytest.approx(-1 / 3), pytest.approx(go))
    assert found["multipl-e", "pass@1"] == (pytest.approx((0.5 - 1 / 3) / 2), pytest.approx((js**2 + go**2) ** 0.5 / 2))


def test_other_text_is_not_paired(tmp_path: Path) -> None:
    record = {"sequence": 0, "tokens": 2, "log_probs": -4.0}
    results = {}
    for name, text in ("one", "aa"), ("two", "aa"), ("three", "bb"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "calibration.jsonl").write_text(json.dumps(record) + "\n")
        results[name] = {"tasks": {"calibration": {"text": text, "sequences": 1}}}
    found = differences.against_first(results, {name: tmp_path / name for name in results})
    assert [len(of_model) for of_model in found.values()] == [1, 0]


def test_other_problems_are_not_paired(tmp_path: Path) -> None:
    one = evaluated(tmp_path / "one", {"humaneval": [[1, 1], [0, 0]]})
    two = evaluated(tmp_path / "two", {"humaneval": [[1, 1], [1, 0], [0, 1]]})
    results = {"one": one, "two": two}
    found = differences.against_first(results, {"one": tmp_path / "one", "two": tmp_path / "two"})
    assert found == {"two": {}}


def test_a_difference_of_answers_that_are_no_programs_is_called_so(tmp_path: Path) -> None:
    """Of ten problems one model passes all, another writes nothing to four, a third four wrong programs."""
    results, good, bad = {}, "def f():\n    return 1\n", "def f():\n    return 2\n"
    for name, texts in ("one", [good] * 10), ("silent", [good] * 6 + [""] * 4), ("wrong", [good] * 6 + [bad] * 4):
        results[name] = evaluated(tmp_path / name, {"humaneval": [[int(text == good)] for text in texts]})
        results[name]["tasks"]["humaneval"] |= {"language": "python"}
        for file in (tmp_path / name).glob("*.jsonl"):
            outcomes = [json.loads(line) | {"sample": 0} for line in file.read_text().splitlines()]
            file.write_text("".join(json.dumps(row) + "\n" for row in outcomes))
        rows = [
            {"task_id": f"humaneval/{number}", "sample": 0, "completion": text, "finish": "end"}
            for number, text in enumerate(texts)
        ]
        (tmp_path / name / "humaneval.greedy.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (note,) = differences.of_answers_that_are_none(results, {name: tmp_path / name for name in results})
    assert note.startswith(
        "humaneval, greedy_pass@1, silent - one: most of the difference is from answers that are empty"
    )
    assert note.endswith("where neither is (6 of 10 pairs of answers) it is +0.0000")
