"""The method's settings are declared once, and everybody takes them from there."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_type_hints

import pytest

from ebft.config.convert import convert
from ebft.config.evaluation import EvalOptions
from ebft.config.fields import default_of
from ebft.config.method import MethodConfig
from ebft.config.training import EBFTConfig
from ebft.errors import ConfigError
from ebft.method.rewards import feature_matching_rewards
from ebft.model.features import resolve_taps


def test_training_takes_every_setting_as_it_is() -> None:
    mine = {f.name: f for f in fields(EBFTConfig)}
    for f in fields(MethodConfig):
        assert (default_of(mine[f.name]), mine[f.name].metadata) == (default_of(f), f.metadata)


def test_the_default_whitening_is_the_same_in_code_and_settings() -> None:
    import inspect

    default = inspect.signature(feature_matching_rewards).parameters["whitening"].default
    assert default == MethodConfig().whitening == EvalOptions().method.whitening == "reference"


def test_layers_are_fractions_of_the_depth_or_numbers() -> None:
    assert [type(tap) for tap in MethodConfig(feature_layers=[0.5, 8.0]).feature_taps] == [float, int]
    for given in ([0.25, 1, 1.0], "0.25,1,1.0", ["0.25", "1", "1.0"]):
        layers = convert("feature_layers", given, get_type_hints(MethodConfig)["feature_layers"])
        taps = MethodConfig(feature_layers=layers).feature_taps
        assert [(type(tap), tap) for tap in taps] == [(float, 0.25), (int, 1), (float, 1.0)]
        assert resolve_taps(taps, 6) == (1, 1, 6), "the first layer, and the last"
    with pytest.raises(ConfigError, match=r"holds 'a\.b', which is not a whole number or a number"):
        convert("feature_layers", "a.b", get_type_hints(MethodConfig)["feature_layers"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"whitening": "bth"}, "whitening='bth' is not one of none, .*; did you mean 'both'?"),
        ({"feature_pooling": "max"}, "feature_pooling='max' is not one of last, mean"),
        ({"samples": 0}, "samples=0 must be at least 1"),
        ({"eval_samples": 0}, "eval_samples=0 must be at least 1, or none"),
        ({"horizon": 1024}, "horizon=1024 with stride=8 does not fit in context_length=1024; use horizon<=1016"),
        ({"temperature": 0.0}, "temperature=0.0 must be above 0"),
        ({"alpha": 1.5}, "alpha=1.5 must lie between 0 and 1"),
        ({"gamma": -0.1}, "gamma=-0.1 must not be negative"),
        ({"samples": 1}, "samples=1 leaves no unbiased feature-matching loss"),
        ({"feature_model": "m", "feature_source": "random"}, "exclude each other; give one of them"),
    ],
)
def test_wrong_settings_name_the_field_the_value_and_the_way_out(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MethodConfig(**settings)
