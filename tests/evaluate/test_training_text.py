"""Calibration warns about text that a run was trained on, and says how to choose what it held out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ebft.config.evaluation import EvalOptions
from ebft.evaluate.training_text import seen_in_training


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
    assert found.endswith("for the documents that it held out add --held-out 0.02 --split-seed 3")
    monkeypatch.chdir(tmp_path)
    assert seen_in_training(str(Path("run") / place), EvalOptions(calibration_data="data.jsonl")) is not None


def test_a_limit_belongs_to_the_split(tmp_path: Path) -> None:
    found = seen_in_training(str(run_folder(tmp_path, limit_documents=100)), options(tmp_path))
    assert found is not None
    assert found.endswith("--split-seed 3 --limit-documents 100")


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
