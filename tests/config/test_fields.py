"""How settings are declared and checked."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

import pytest

from ebft.config.fields import at_least, check_choices, default_of, option
from ebft.errors import ConfigError


@dataclass
class Settings:
    kind: Literal["last", "mean"] = option("last", "which", "a", changes="text")
    names: list[str] = option(["x"], "some", "b")
    count: int = option(3, "how many", "b")
    limit: int | None = option(None, "at most", "b")


def test_options_carry_help_group_and_default() -> None:
    by_name = {f.name: f for f in fields(Settings)}
    assert by_name["kind"].metadata == {"help": "which", "group": "a", "changes": "text"}
    assert {name: default_of(f) for name, f in by_name.items()} == {
        "kind": "last",
        "names": ["x"],
        "count": 3,
        "limit": None,
    }


def test_lists_are_not_shared_between_settings() -> None:
    Settings().names.append("y")
    assert Settings().names == ["x"]


def test_checks_name_field_value_and_way_out() -> None:
    check_choices(Settings(kind="mean"), Settings)
    with pytest.raises(ConfigError, match=r"kind='men' is not one of last, mean; did you mean 'mean'\?"):
        check_choices(Settings(kind="men"), Settings)  # type: ignore[arg-type]
    at_least(Settings(count=1, limit=None), 1, "count", "limit")
    with pytest.raises(ConfigError, match=r"count=0 must be at least 1$"):
        at_least(Settings(count=0), 1, "count", "limit")
    with pytest.raises(ConfigError, match=r"limit=0 must be at least 1, or none$"):
        at_least(Settings(limit=0), 1, "count", "limit")
