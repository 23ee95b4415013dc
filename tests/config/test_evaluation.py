"""The options of an evaluation."""

from __future__ import annotations

from ebft.config.evaluation import BORROWED, EvalOptions, options
from ebft.config.method import MethodConfig, settings_that_change


def test_evaluation_borrows_what_changes_its_numbers() -> None:
    names = {inner for inner, owner in BORROWED.values() if owner is MethodConfig}
    own = {"alpha", "eval_samples", "eval_seed"}
    assert names == set(settings_that_change("text", "features", "proxy")) - own
    assert {name for name, _, _ in options()} >= {"rollouts", "rollout_temperature", "samples", "temperature"}
    chosen = EvalOptions.from_values({"rollouts": "3", "samples": "5", "rollout_temperature": "0.7", "seed": "2"})
    assert (chosen.method.samples, chosen.samples, chosen.method.temperature, chosen.temperature) == (3, 5, 0.7, 0.6)
    assert chosen.method.eval_seed == 2
    assert chosen.values("calibration")["rollouts"] == 3
