"""The options that only baselines have, and their checks."""

from __future__ import annotations

from typing import Any

import pytest

from ebft.config.baseline_options import RLVROptions, SFTOptions
from ebft.errors import ConfigError


def test_what_is_right_passes() -> None:
    SFTOptions(max_length=2).check_options()
    RLVROptions(rewards=["bleu", "unit_tests"], reward_weights=[1.0, 2.0], generations=2).check_options()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rewards": []}, "no reward: set `rewards`"),
        ({"reward_weights": [1.0, 2.0]}, "reward_weights has 2 values for 1 rewards"),
        ({"generations": 1}, "generations=1 must be at least 2"),
        ({"max_new_tokens": 0}, "max_new_tokens=0 must be at least 1"),
        ({"reward_workers": 0}, "reward_workers=0 must be at least 1, or none"),
        ({"generation_temperature": 0.0}, "generation_temperature=0.0 must be above 0"),
        ({"generation_temperature": float("nan")}, "generation_temperature=nan must be above 0"),
        ({"kl_coefficient": -0.1}, "kl_coefficient=-0.1 must not be negative"),
        ({"reward_timeout": 0.0}, "reward_timeout=0.0 must be a positive number of seconds"),
        ({"reward_timeout": float("inf")}, "reward_timeout=inf must be a positive number of seconds"),
    ],
)
def test_wrong_options_of_rlvr(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RLVROptions(**{"rewards": ["bleu"], **settings}).check_options()


def test_a_sequence_needs_a_token_to_predict() -> None:
    with pytest.raises(ConfigError, match="max_length=1 must be at least 2"):
        SFTOptions(max_length=1).check_options()
