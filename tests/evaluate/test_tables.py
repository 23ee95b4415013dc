"""Tables, labels, pictures, and paired differences on outcomes written by hand."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

import pytest

from ebft.config.evaluation import EvalOptions
from ebft.errors import ConfigError
from ebft.evaluate import tables
from ebft.evaluate.tasks import ProblemSet, scored
from ebft.method.measures import TEMPERATURES, Estimate
from ebft.problems.problem import Question
from ebft.runtime.files import write_jsonl

Passed = dict[str, list[list[int]]]  # by set and problem, of each sample


def test_tables_and_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib.pyplot as plt

    drawn: list[Any] = []
    monkeypatch.setattr(plt, "close", drawn.append)
    results: dict[str, Any] = {"code": {"tasks": {}}}
    for name, s in (("base", 1), ("ebft", 2)):
        point = {"value": 2.0 * s, "standard_error": 0.1, "count": 3}
        profile = [{**point, "length": g, "value": g * s} for g in (1, 8, 128)]
        points = [{"temperature": t, "cross_entropy": point, "answer_cross_entropy": None} for t in TEMPERATURES]
        results[name] = {"tasks": {"calibration": {"metrics": {}, "profile": profile, "temperatures": points}}}
    moved = {"ebft": {("calibration", "cross_entropy_temperature_0.6"): Estimate(-0.5, 0.25)}}
    rows = tables.table(results, moved, temperatures=True)
    assert rows[0] == ("task", "metric", "code", "base", "ebft", "ebft - code")
    [row] = [row for row in rows if row[1] == "cross-entropy, all tokens at temperature 0.6"]
    assert row[2:] == ("", "2.0000 ± 0.1000 (n=3)", "4.0000 ± 0.1000 (n=3)", "-0.5000 ± 0.2500")
    assert len(rows) == 1 + 3 + len(TEMPERATURES), "no answer tokens, no rows"
    tables.draw(results, tmp_path)
    curves = [[*zip(*line.get_data(), strict=True)] for line in drawn[0].axes[0].lines]
    assert curves == [[(g, g * s) for g in (1, 8, 128)] for s in (1, 2)]


def test_labels_tell_models_apart_and_other_measurements_are_not_compared() -> None:
    assert tables.labels(["runs/a/final", "runs/b/final", "final"]) == ["a", "b", "final"]
    assert tables.labels(["one/a/final", "two/a"]) == ["one/a/final (1)", "two/a (2)"]

    def calibrated(taps: int = 1, **settings: Any) -> dict[str, Any]:
        entry = {"features": {"weights": "w", "taps": [taps], "model": "m"}, "settings": {"horizon": 8, **settings}}
        return {"tasks": {"calibration": entry}}

    for other, named in (
        (calibrated(horizon=4, stride=4), r"\(horizon: 8 and 4, stride: None and 4\)"),
        (calibrated(taps=2), r"calibrated differently \(taps: \[1\] and \[2\]\)"),
    ):
        with pytest.raises(ConfigError, match=named):
            tables.check_same_space({"a": calibrated(), "b": other})
    tables.check_same_space({"a": calibrated(), "b": calibrated(also_at_temperatures=[1.0], feature_model="x")})


def evaluated(folder: Path, passed: Passed) -> dict[str, Any]:
    """Results of sets of problems, with a list of outcomes for each problem, and the files beside them. What does not
    pass greedily is no program."""
    folder.mkdir()
    parts = []
    for name, problems in passed.items():
        for decoding, samples in ("greedy", slice(1)), ("samples", slice(None)):
            told = ({"status": "failed", "completion": ""}, {"status": "passed", "completion": "return 1"})
            rows = [
                {"task_id": f"{name}/{number}", "finish": "end"} | told[one]
                for number, outcomes in enumerate(problems)
                for one in outcomes[samples]
            ]
            for ending in (".scores.samples.jsonl", ".jsonl"):
                write_jsonl(folder / f"{name}.{decoding}{ending}", rows)
        metrics = {key: {"value": 0.5} for key in ("greedy_pass@1", "greedy_empty", "pass@1", "pass@2")}
        parts.append({"name": name, "language": "python", "metrics": metrics})
    return {"tasks": {"task": parts[0] if len(parts) == 1 else {"metrics": {}, "parts": parts}}}


def moved(tmp_path: Path, one: Passed, two: Passed) -> Any:
    folders = {"one": tmp_path / "one", "two": tmp_path / "two"}
    results = {name: evaluated(folders[name], passed) for name, passed in (("one", one), ("two", two))}
    return {metric: found for (_, metric), found in tables.against_first(results, folders)["two"].items()}


def error(values: list[float]) -> float:
    return statistics.stdev(values) / len(values) ** 0.5


def test_shares_of_problems_are_paired_by_problem_and_averaged_over_languages(tmp_path: Path) -> None:
    one, two = [[1, 1], [0, 0], [0, 1], [0, 0]], [[1, 1], [1, 0], [0, 1], [0, 0]]
    assert moved(tmp_path, {"humaneval": one}, {"humaneval": two}) == {
        "greedy_pass@1": (0.25, pytest.approx(error([0, 1, 0, 0]))),
        "greedy_empty": (-0.25, pytest.approx(error([0, 1, 0, 0]))),
        "pass@1": (0.125, pytest.approx(error([0, 0.5, 0, 0]))),
        "pass@2": (0.25, pytest.approx(error([0, 1, 0, 0]))),
    }
    one = {"m-js": [[0, 0], [0, 0]], "m-go": [[1, 1], [1, 1], [0, 0]]}
    two = {"m-js": [[1, 1], [0, 0]], "m-go": [[1, 1], [0, 0], [0, 0]]}
    (tmp_path / "several").mkdir()
    found = moved(tmp_path / "several", one, two)
    js, go = error([1, 0]), error([0, -1, 0])
    assert found["m-js pass@1"] == (0.5, pytest.approx(js))
    assert found["m-go pass@1"] == (pytest.approx(-1 / 3), pytest.approx(go))
    assert found["pass@1"] == (pytest.approx((0.5 - 1 / 3) / 2), pytest.approx((js**2 + go**2) ** 0.5 / 2))


def test_other_problems_and_other_text_are_not_paired(tmp_path: Path) -> None:
    assert moved(tmp_path, {"humaneval": [[1, 1]]}, {"humaneval": [[1, 1], [1, 0]]}) == {}
    write_jsonl(tmp_path / "calibration.jsonl", [{"sequence": 0, "tokens": 2, "log_probs": -4.0}])
    texts = {"first": "aa", "same": "aa", "other": "bb"}
    results = {name: {"tasks": {"calibration": {"text": text, "sequences": 1}}} for name, text in texts.items()}
    found = tables.against_first(results, dict.fromkeys(texts, tmp_path))
    assert [len(of_model) for of_model in found.values()] == [1, 0]


def test_languages_are_scored_apart_and_averaged(tmp_path: Path) -> None:
    """Those that cannot be run here have no metrics and do not count."""

    def problems(language: str, passed: float, skipped: str | None = None) -> ProblemSet:
        write_jsonl(tmp_path / f"{language}.prompts.jsonl", [{"task_id": "a", "prompt": "p"}])
        answer = {"task_id": "a", "sample": 0, "completion": "x", "finish": "stop"}
        write_jsonl(tmp_path / f"{language}.greedy.jsonl", [answer])
        found = {"metrics": {"pass@1": {"value": passed, "standard_error": 0.3, "count": 1}}}
        asked = {"raw": [Question("p")]}
        return ProblemSet(language, ["a"], asked, 8, lambda *_: dict(found), skipped, language)

    options = EvalOptions.from_values({"tasks": ["multipl-e"], "samples": 0, "prompt_style": "raw"})
    sets = [problems("js", 1.0), problems("cpp", 0.0), problems("rs", 1.0, skipped="no rustc")]
    found = scored(options, tmp_path, sets)
    expected = {"value": 0.5, "standard_error": pytest.approx(0.3 * math.sqrt(2) / 2), "count": 2}
    assert found["metrics"]["greedy_pass@1"] == expected
    assert found["metrics"]["js greedy_pass@1"]["value"] == 1.0
    assert (found["problems"], [part["name"] for part in found["parts"]]) == (2, ["js", "cpp", "rs"])
    assert found["notes"] == ["rs is skipped: no rustc"]
