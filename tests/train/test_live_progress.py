"""What a person sees while a run trains."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ebft.runtime import messages
from ebft.train import live_progress
from ebft.train.live_progress import LiveProgress, StepLines, step_lines
from tests.baselines.runs import needs_trl, run, write_recipe

pytestmark = pytest.mark.usefixtures("offline")


@needs_trl
def test_without_a_bar_lines_say_how_it_goes(tiny: Path, sums: Path, tmp_path: Path, capsys: Any) -> None:
    assert run("sft", write_recipe(tmp_path, tiny, sums, max_steps=2, eval_steps=1), tmp_path / "out") == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("step 1: ")]
    assert lines[0].startswith("step 1: loss ")
    assert "cross_entropy" in lines[1]


SHOWN = {"reward": "reward", "ebft/cfm": "cfm", "count": "n"}


def test_lines_of_a_log_entry() -> None:
    training = {"reward": 0.12345, "count": 3, "loss": 9.0}
    assert step_lines(7, training, SHOWN) == ({"reward": "0.123", "n": "3"}, ["step 7: reward 0.123, n 3"])
    evaluation = {"eval_cfm": 0.5, "eval_cfm_se": 0.1, "eval_cross_entropy": 2.0, "eval_runtime": 1.0}
    assert step_lines(8, evaluation, SHOWN) == ({}, ["step 8: cfm 0.5000, cross_entropy 2.0000"])
    both = step_lines(9, training | evaluation, SHOWN)[1]
    assert both == ["step 9: reward 0.123, n 3", "step 9: cfm 0.5000, cross_entropy 2.0000"]
    assert step_lines(9, {"train_loss": 1.0, "eval_translation_bleu": 1.0}, SHOWN) == ({}, [])


@dataclass
class State:
    is_world_process_zero: bool = True
    global_step: int = 1
    max_steps: int = 3


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(live_progress.logger, "info", found.append)
    return found


def test_only_the_first_process_says_how_it_goes(logged: list[str]) -> None:
    for first in (False, True):
        StepLines(SHOWN).on_log(None, State(first), None, logs={"reward": 1.0})
    StepLines(SHOWN).on_log(None, State(), None, logs=None)
    assert logged == ["step 1: reward 1.000"]


def test_the_bar_of_a_resumed_run_begins_there(capsys: pytest.CaptureFixture[str]) -> None:
    live = LiveProgress(SHOWN)
    live.on_train_begin(None, State(global_step=40, max_steps=50), None)
    bar = live.training_bar
    assert bar is not None
    assert (bar.n, bar.initial) == (40, 40)
    live.on_step_end(None, State(global_step=41, max_steps=50), None)
    assert bar.n == 41
    assert "40/50" in capsys.readouterr().err
    bar.close()


def test_a_file_gets_no_bar_but_a_line_a_minute(
    logged: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(messages, "SECONDS", 0.0)
    monkeypatch.setattr(messages.logger, "info", logged.append)
    lines = StepLines(SHOWN)
    lines.on_train_begin(None, State(global_step=40, max_steps=50), None)
    lines.on_step_end(None, State(global_step=41, max_steps=50), None)
    lines.on_log(None, State(global_step=41), None, logs={"reward": 1.0})
    lines.on_train_end(None, State(), None)
    assert any(line.startswith("training: 41 of 50 [") for line in logged)
    assert "step 41: reward 1.000" in logged
    assert capsys.readouterr().err == ""


def test_a_bar_shows_the_terms(logged: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    live = LiveProgress(SHOWN)
    live.on_train_begin(None, State(), None)
    logs = {"reward": 1.0, "eval_cfm": 0.5}
    live.on_log(None, State(), None, logs=logs)
    bar = live.training_bar
    assert bar is not None
    assert bar.postfix == "reward=1.000"
    assert logged == []
    printed = capsys.readouterr().err
    assert "step 1: cfm 0.5000" in printed
    assert "step 1: reward 1.000" not in printed, "the bar says it"
    bar.close()
