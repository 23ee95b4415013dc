"""How settings are read from YAML and flags: types, lists, names of other tools, slips."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import pytest

from ebft.config.evaluation import BORROWED, GROUPS, EvalOptions, options
from ebft.config.method import MethodConfig, settings_that_change
from ebft.config.recipe import field_types
from ebft.config.settings import Parser, check, check_name, option, typed
from ebft.errors import ConfigError
from ebft.loading import tap_settings
from ebft.model.features import resolve_taps


@dataclass
class Settings:
    kind: Literal["last", "none"] = option("last", "which")
    names: list[str] = option(["x"], "some")
    count: int = option(3, "how many", 1)
    share: float = option(0.5, "how much")
    limit: int | None = option(None, "at most", 1)
    flag: bool = option(True, "whether")
    layers: list[int | float] = option([], "some")
    made_of: str | dict[str, Any] | None = option(None, "parts")


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        *((int, value, 100) for value in ("100", 100.0, "1e2")),
        *((float, value, 1.0) for value in (1, "1e0")),
        *((bool, value, True) for value in (True, "True", "yes", "1")),
        *((bool, value, False) for value in ("false", "no", 0)),
        *((int | None, value, None) for value in (None, "none", "null")),
        (Literal["last", "none"], "none", "none"),  # a choice, and not the absence of a value
        (str, False, "no"),  # YAML's bare `no`
        (str | bool | None, True, True),
        (list[str], " a , b ,", ["a", "b"]),
        (list[str], "none", []),
        (list[float], 0.5, [0.5]),
        *((str | dict[str, Any] | None, value, value) for value in ({"r": 4}, "adapter.json")),
    ],
)
def test_values_become_the_types_of_their_settings(kind: Any, value: Any, expected: Any) -> None:
    found = typed("name", value, kind)
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("kind", "value"), [(str, 5), (int, "many"), (int, 1.5), (int, True), (bool, "perhaps"), (list[float], "1,x")]
)
def test_wrong_types_are_told(kind: Any, value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^name=.* is not "):
        typed("name", value, kind)


def test_layers_are_fractions_of_the_depth_or_numbers() -> None:
    for given in ([0.25, 1, 1.0], "0.25,1,1.0", ["0.25", "1", "1.0"]):
        layers = typed("feature_layers", given, field_types()["feature_layers"])
        taps = tap_settings(MethodConfig(feature_layers=layers))["layers"]
        assert [(type(tap), tap) for tap in taps] == [(float, 0.25), (int, 1), (float, 1.0)]
        assert resolve_taps(taps, 6) == (1, 1, 6), "the first layer, and the last"


def test_checks_look_once_at_choices_and_smallest_values() -> None:
    check(Settings(limit=None, count=1))
    for wrong in ({"kind": "lats"}, {"count": 0}, {"count": float("nan")}):
        with pytest.raises(ConfigError, match=r"did you mean 'last'|must be at least 1"):
            check(Settings(**wrong))  # type: ignore[arg-type]
    Settings().names.append("y")
    assert Settings().names == ["x"], "a default is not shared"


def test_names_of_other_tools_lead_to_ours() -> None:
    of_eval = ["--" + name.replace("_", "-") for name, _, _ in options()]
    for known, name, ours in (
        (field_types("train"), "beta", "kl_weight"),
        (field_types("rlvr"), "beta", "kl_coefficient"),
        (of_eval, "--num-generations", "--samples"),
    ):
        with pytest.raises(ConfigError, match=f"unknown setting '{name}'; here it is called '{ours}'"):
            check_name(name, known, "setting")


def parsed(*arguments: str) -> Any:
    parser = Parser("test", "a test")
    parser.add_argument("--config")
    parser.add_settings("Settings", [(f.name, f) for f in fields(Settings)])
    return parser.parse_args(arguments)


@pytest.mark.parametrize(
    ("arguments", "settings"),
    [
        (["--count", "4", "--made_of=a=b"], {"count": "4", "made_of": "a=b"}),
        (["--made-of", "x", "--count", "-1"], {"made_of": "x", "count": "-1"}),
        (["--flag", "--names", "a,b", "c", "--names", "d"], {"flag": True, "names": ["a", "b", "c", "d"]}),
        (["--no-flag", "--count", "1", "--count", "2"], {"flag": False, "count": "2"}),
        (["--flag", "false"], {"flag": "false"}),
    ],
)
def test_flags_are_read(arguments: list[str], settings: dict[str, Any]) -> None:
    assert parsed(*arguments).settings == settings
    assert parsed().settings == {}


def test_a_place_with_a_comma_is_one_value_and_an_unknown_flag_is_told(tmp_path: Path) -> None:
    (place := tmp_path / "ebft,seed=0").mkdir()
    assert parsed("--names", str(place), "a,b").settings["names"] == [str(place), "a", "b"]
    with pytest.raises(ConfigError, match=r"^unknown option '--cuont'; did you mean '--count'"):
        parsed("--cuont", "4")
    with pytest.raises(ConfigError, match=r"^what is 'recipe.yaml'\? Name it, as in --config recipe.yaml"):
        parsed("recipe.yaml")


def test_evaluation_borrows_what_changes_its_numbers() -> None:
    names = {inner for inner, owner in BORROWED.values() if owner is MethodConfig}
    own = {"alpha", "eval_samples", "eval_seed"}
    assert names == set(settings_that_change("text", "features", "proxy")) - own
    chosen = EvalOptions.from_values({"rollouts": "3", "samples": "5", "rollout_temperature": "0.7", "seed": "2"})
    assert (chosen.method.samples, chosen.samples, chosen.method.temperature, chosen.temperature) == (3, 5, 0.7, 0.6)
    assert chosen.method.eval_seed == 2
    assert chosen.values("calibration")["rollouts"] == 3


def test_groups_hold_every_option_once() -> None:
    names = [name for name, _, _ in options()]
    assert len(set(names)) == len(names)
    assert sorted(name for group in GROUPS.values() for name in EvalOptions().values(group)) == sorted(names)
    assert {"horizon", "whitening", "sequences", "text_column"} <= EvalOptions().values("calibration").keys()
