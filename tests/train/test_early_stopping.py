"""When a run stops because validation no longer gets better."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ebft.errors import ConfigError
from ebft.train.early_stopping import EarlyStopping, evaluations_since_best
from tests.baselines.runs import run, write_recipe
from tests.config.recipes import load

pytestmark = pytest.mark.usefixtures("offline")


@pytest.mark.parametrize(
    ("values", "greater", "threshold", "since"),
    [
        ([3.0], False, 0.0, 0),
        ([3.0, 2.0, 1.0], False, 0.0, 0),
        ([3.0, 2.0, 2.0, 2.5], False, 0.0, 2),
        ([3.0, 2.0, 2.0, 2.5], True, 0.0, 3),
        ([3.0, 2.9, 2.8], False, 0.5, 2),
        ([3.0, 2.8, 2.4], False, 0.5, 0),  # better than the best by more than the threshold, in two evaluations
        ([1.0, float("nan"), float("nan")], False, 0.0, 2),
    ],
)
def test_evaluations_since_the_best(values: list[float], greater: bool, threshold: float, since: int) -> None:
    assert evaluations_since_best(values, greater, threshold) == since


def test_the_log_of_a_checkpoint_is_enough() -> None:
    """A resumed run has a new callback, and the log of the run before."""
    args: Any = SimpleNamespace(metric_for_best_model="cfm", greater_is_better=False)
    entries: list[dict[str, float]] = [{"loss": 1.0}, {"eval_cfm": 1.0}, {"eval_cfm": 2.0}, {"eval_cfm": 1.5}]
    for patience, stops in ((2, True), (3, False)):
        control: Any = SimpleNamespace(should_training_stop=False)
        state: Any = SimpleNamespace(log_history=entries, global_step=3, is_world_process_zero=True)
        EarlyStopping(patience, 0.0).on_evaluate(args, state, control)
        assert control.should_training_stop == stops


def test_a_run_stops(tiny: Path, sums: Path, tmp_path: Path) -> None:
    """Nothing is ever better by a million, so it stops at the second evaluation."""
    recipe = write_recipe(tmp_path, tiny, sums, max_steps=8, eval_steps=1, save_strategy="no")
    stopping = ["--early_stopping_patience", 1, "--early-stopping-threshold", 1e6]
    assert run("train", recipe, tmp_path / "out", *stopping) == 0
    assert json.loads((tmp_path / "out" / "results.json").read_text())["steps"] == 2


def test_it_needs_evaluations() -> None:
    with pytest.raises(ConfigError, match="early_stopping_patience=2 needs evaluations; set eval_strategy=steps"):
        load(early_stopping_patience=2)
