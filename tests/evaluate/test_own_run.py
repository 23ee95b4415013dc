"""Calibration as a run validated; warnings about text that it was trained on, and about other settings than its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ebft.cli import main
from ebft.config.evaluation import BORROWED, EvalOptions
from ebft.config.like_run import validation_options
from ebft.errors import ConfigError
from ebft.evaluate.own_run import seen_in_training
from tests.baselines.runs import results_of, run, write_recipe

RUN: dict[str, Any] = {
    "model": "base",
    "dataset_split": "train",
    "context_length": 96,
    "samples": 4,
    "eval_seed": 0,
    "validation_sequences": 64,
}


def run_folder(folder: Path, **settings: Any) -> Path:
    (folder / "run" / "final").mkdir(parents=True)
    (folder / "data.jsonl").write_text("{}")
    given = {"dataset": [str(folder / "data.jsonl")], "validation_split": 0.02, "split_seed": 3, **settings}
    (folder / "run" / "resolved.json").write_text(json.dumps(given))
    return folder / "run"


def options(folder: Path, data: str = "data.jsonl", **values: Any) -> EvalOptions:
    return EvalOptions.from_values({"calibration_data": str(folder / data), **values})


@pytest.mark.parametrize("place", ["", "final", "checkpoint-8"])
def test_the_runs_own_text(tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_folder(tmp_path)
    found = seen_in_training(str(run / place), options(tmp_path))
    assert found is not None
    assert found.endswith(f"--like {run / place} measures on what it held out")
    monkeypatch.chdir(tmp_path)
    assert seen_in_training(str(Path("run") / place), EvalOptions(calibration_data="data.jsonl")) is not None


@pytest.mark.parametrize("settings", [{"validation_split": 0}, {"validation_dataset": "other.jsonl"}], ids=str)
def test_a_run_that_held_nothing_of_it_out(tmp_path: Path, settings: dict[str, Any]) -> None:
    found = seen_in_training(str(run_folder(tmp_path, **settings)), options(tmp_path))
    assert found is not None
    assert found.endswith("; give other --calibration-data")


def test_nothing_to_warn_about(tmp_path: Path) -> None:
    run = run_folder(tmp_path)
    assert seen_in_training(str(run), options(tmp_path, "other.jsonl")) is None
    assert seen_in_training(str(run), options(tmp_path, held_out="0.02")) is None
    assert seen_in_training(str(run), EvalOptions()) is None
    assert seen_in_training("some/hub-name", options(tmp_path)) is None


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("settings", [{}, {"horizon": 2, "eval_samples": 3, "document_masks": True}], ids=str)
def test_like_a_run_gives_the_numbers_of_that_run(
    tiny: Path, sums: Path, tmp_path: Path, settings: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    assert run("train", write_recipe(tmp_path, tiny, sums, **settings), output, "--max_steps", 2) == 0
    common = ["eval", "--tasks", "calibration", "--output"]
    assert main([*common, str(tmp_path / "like"), "--like", str(output)]) == 0
    assert "not measured as" not in capsys.readouterr().err
    found = json.loads((tmp_path / "like" / "results.json").read_text())["tasks"]["calibration"]
    after = results_of(output)["after"]
    for name in ("cross_entropy", "cfm", "whitened_proxy"):
        assert found["metrics"][name]["value"] == pytest.approx(after[f"eval_{name}"], rel=1e-5), name

    other = [*common, str(tmp_path / "other"), "--model", str(output), "--calibration-data", str(sums)]
    assert main([*other, "--context-length", "24", "--profile-lengths", "none"]) == 0
    said = capsys.readouterr().err
    assert f"not measured as {output} validated: context_length 24 instead of " in said
    assert f"--like {output} measures the same way" in said


def test_other_options_win(tmp_path: Path) -> None:
    run = run_folder(tmp_path, **RUN)
    chosen = EvalOptions.from_values({"like": str(run), "model": ["mine"], "horizon": 2, "sequences": 3})
    assert (chosen.model, chosen.method.horizon, chosen.sequences) == (["mine"], 2, 3)
    assert (chosen.method.context_length, chosen.held_out, chosen.feature_model) == (96, 0.02, "base")
    assert chosen.profile_lengths == [1, 2, 4, 8, 16, 32]  # what fits


@pytest.mark.parametrize("changed", [{}, {"validation_split": 0}, {"dataset": ["a", "b"]}], ids=str)
def test_another_text_is_measured_as_a_whole(tmp_path: Path, changed: dict[str, Any]) -> None:
    run = run_folder(tmp_path, **RUN, **{"test_split": 0.3, "limit_documents": 5, **changed})
    chosen = EvalOptions.from_values({"like": str(run), "calibration_data": str(tmp_path / "mine.jsonl")})
    assert (chosen.held_out, chosen.data.test_split, chosen.data.limit_documents) == (0, 0, None)
    assert (chosen.sequences, chosen.method.context_length) == (128, 96)
    theirs = EvalOptions.from_values({"like": str(run_folder(tmp_path / "other", **RUN))})
    named = EvalOptions.from_values({"like": str(tmp_path / "other/run"), "calibration_data": theirs.calibration_data})
    assert named.held_out == theirs.held_out == 0.02, "the run's own, named"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"validation_split": 0}, "held no text out"),
        ({"dataset": ["a", "b"]}, "several datasets, mixed"),
        ({"model": None}, "no run is there"),
    ],
    ids=str,
)
def test_runs_that_one_cannot_measure_like(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    settings = {name: value for name, value in (RUN | changed).items() if value is not None}
    with pytest.raises(ConfigError, match=message):
        validation_options(str(run_folder(tmp_path, **settings)), BORROWED)
    with pytest.raises(ConfigError, match="no run is there"):
        validation_options(str(tmp_path / "nowhere"), BORROWED)


def test_a_template_for_a_task_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="are made with calibration_prompt_template"):
        EvalOptions.from_values({"tasks": ["calibration"], "prompt_template": "{question}"})
