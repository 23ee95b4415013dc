"""The options of an evaluation."""

from __future__ import annotations

from typing import Any

import pytest

from ebft.config import evaluation
from ebft.config.evaluation import BORROWED, EvalOptions, options
from ebft.config.method import MethodConfig, settings_that_change
from ebft.config.settings import Parser
from ebft.errors import ConfigError


def test_evaluation_borrows_what_changes_its_numbers() -> None:
    names = {inner for inner, owner in BORROWED.values() if owner is MethodConfig}
    own = {"alpha", "eval_samples", "eval_seed"}
    assert names == set(settings_that_change("text", "features", "proxy")) - own
    chosen = EvalOptions.from_values({"rollouts": "3", "samples": "5", "rollout_temperature": "0.7", "seed": "2"})
    assert (chosen.method.samples, chosen.samples, chosen.method.temperature, chosen.temperature) == (3, 5, 0.7, 0.6)
    assert chosen.method.eval_seed == 2
    assert chosen.values("calibration")["rollouts"] == 3


def parse(*arguments: str) -> EvalOptions:
    parser = Parser("eval", "")
    parser.add_settings("all", [(name, f) for name, f, _ in options()])
    return EvalOptions.from_values(parser.parse_args(arguments).settings)


def test_flags_and_values_give_the_same_options() -> None:
    flags = parse("--tasks", "mbpp,humaneval", "--limit", "3", "--no-greedy", "--feature-layers", "0.5,2")
    values = {"tasks": ["mbpp", "humaneval"], "limit": 3, "greedy": False, "feature_layers": [0.5, 2]}
    assert flags == EvalOptions.from_values(values)
    assert flags.method.feature_taps == [0.5, 2]
    for arguments in (["--profile-lengths", "1,2"], ["--profile-lengths", "1", "2"], ["--profile-lengths", "1,", "2"]):
        assert parse(*arguments).profile_lengths == [1, 2]
    assert parse("--profile-lengths", "none").profile_lengths == []
    assert parse("--model", "a", "--model", "b").model == ["a", "b"]


def test_groups_hold_every_option_once() -> None:
    names = [name for name, _, _ in options()]
    assert len(set(names)) == len(names)
    by_group = {group: EvalOptions().values(group) for group in evaluation.GROUPS}
    assert sorted(name for values in by_group.values() for name in values) == sorted(names)
    assert {"horizon", "whitening", "sequences", "text_column"} <= by_group["calibration"].keys()
    assert {"samples", "top_p"} <= by_group["generation"].keys()
    assert {"languages", "score"} <= by_group["code"].keys()
    assert EvalOptions().values("generation", "running") == by_group["generation"] | by_group["running"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tasks": "humanevl"}, "tasks='humanevl' is not one of .*; did you mean 'humaneval'"),
        ({"languages": ["jss"]}, "languages='jss' is not one of .*; did you mean 'js'"),
        ({"promt_style": "raw"}, "unknown option 'promt_style' of an evaluation; did you mean 'prompt_style'"),
        ({"prompt_style": "plain"}, "prompt_style='plain' is not one of auto, raw, chat"),
        ({"limit": "few"}, "limit='few' is not a whole number"),
        ({"limit": 0}, "limit=0 must be at least 1"),
        ({"samples": -1}, "samples=-1 must be at least 0"),
        ({"temperature": 0}, "temperature=0.0 must be above 0; .* use samples=0"),
        ({"samples": 0, "greedy": False}, "leaves nothing to generate"),
        ({"rollouts": 1}, "rollouts must be at least 2"),
        ({"horizon": 2000}, "horizon=2000 with stride=8 does not fit"),
    ],
)
def test_wrong_values_name_the_field_and_the_way_out(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EvalOptions.from_values(values)
