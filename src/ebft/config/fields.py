"""How a setting is declared: its default, its help text, and what it belongs to."""

from __future__ import annotations

import typing
from dataclasses import MISSING, Field, field, fields
from typing import Any, Literal, get_args, get_origin

from ebft.errors import ConfigError, nearest


def option(default: Any, help: str, group: str, **metadata: Any) -> Any:
    """A field of a settings dataclass; `group` sorts it in help texts and documentation."""
    metadata = {"help": help, "group": group, **metadata}
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def default_of(f: Field[Any]) -> Any:
    if f.default_factory is not MISSING:
        return f.default_factory()
    return None if f.default is MISSING else f.default


def check_choices(settings: Any, cls: type) -> None:
    """The fields that `cls` declares as `Literal` hold one of its values."""
    hints = typing.get_type_hints(cls)
    for f in fields(cls):
        if get_origin(hints[f.name]) is Literal:
            value, choices = getattr(settings, f.name), get_args(hints[f.name])
            if value not in choices:
                raise ConfigError(
                    f"{f.name}={value!r} is not one of {', '.join(choices)}{nearest(str(value), choices)}"
                )


def at_least(settings: Any, least: int, *names: str) -> None:
    """These settings, where they are set, are not below `least`."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and value < least:
            default = next((default_of(f) for f in fields(settings) if f.name == name), 0)
            way_out = ", or none" if default is None else ""
            raise ConfigError(f"{name}={value} must be at least {least}{way_out}")
