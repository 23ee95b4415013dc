"""Values of settings as their types, from YAML or from the text of a flag."""

from __future__ import annotations

from enum import Enum
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from ebft.errors import ConfigError, nearest


def convert(name: str, value: Any, annotation: Any) -> Any:
    """The value as the field's type, from YAML or from the text of a flag."""
    options = _alternatives(annotation)
    if isinstance(value, str) and any(value in _choices(kind) for kind in options):
        return value  # also "none", where that is a choice
    if value is None or (isinstance(value, str) and value.lower() in ("none", "null")):
        if type(None) in options:
            return "none" if name == "report_to" else None
        if value is None or str not in options:
            raise ConfigError(f"{name} must not be empty; it takes {_describe(options)}")
    for choices in (found for kind in options if (found := _choices(kind))):
        if value is False and "no" in choices:  # what YAML makes of a bare `no`
            return "no"
        if isinstance(value, str) and value not in choices:
            raise ConfigError(f"{name}={value!r} is not one of {', '.join(choices)}{nearest(value, choices)}")
    for kind in options:
        converted = _try(value, kind)
        if converted is not _NO:
            return converted
    if wrong := _wrong_item(value, options):
        raise ConfigError(f"{name} holds {wrong}")
    raise ConfigError(f"{name}={value!r} is not {_describe(options)}")


_NO = object()


def _wrong_item(value: Any, options: list[Any]) -> str | None:
    """Of a list, the first item that does not fit, and what would."""
    listed = next((kind for kind in options if get_origin(kind) is list), None)
    if listed is None or not isinstance(value, list | str):
        return None
    inner = _alternatives(get_args(listed)[0])
    items = value.split(",") if isinstance(value, str) else value
    wrong = [item for item in items if _try_any(item, inner) is _NO]
    return f"{wrong[0]!r}, which is not {_describe(inner)}" if wrong else None


def _choices(kind: Any) -> list[str]:
    """The values of an enumeration or a `Literal`."""
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    return [str(member.value) for member in kind] if isinstance(kind, type) and issubclass(kind, Enum) else []


def _try_any(item: Any, kinds: list[Any]) -> Any:
    """The first of several types that the item fits; of int and float, a point or an exponent means float."""
    written_as_float = isinstance(item, float) or (isinstance(item, str) and any(mark in item.lower() for mark in ".e"))
    if kinds == [int, float] and written_as_float:
        kinds = [float]
    return next((found for found in (_try(item, kind) for kind in kinds) if found is not _NO), _NO)


def _alternatives(annotation: Any) -> list[Any]:
    if get_origin(annotation) in (Union, UnionType):
        return [kind for option in get_args(annotation) for kind in _alternatives(option)]
    return [annotation]


def _try(value: Any, kind: Any) -> Any:
    origin = get_origin(kind) or kind
    if origin is list:
        items = [v.strip() for v in value.split(",") if v.strip()] if isinstance(value, str) else value
        items = items if isinstance(items, list) else [items]
        inner = _alternatives(get_args(kind)[0]) if get_args(kind) else [str]
        converted = [_try_any(item, inner) for item in items]
        return _NO if any(c is _NO for c in converted) else converted
    if origin is bool:
        if isinstance(value, bool):
            return value
        return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}.get(
            str(value).lower(), _NO
        )
    if origin in (int, float):
        if isinstance(value, bool):
            return _NO
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            return _NO
        if origin is float:
            return number
        return int(number) if number.is_integer() else _NO
    if origin is str:
        return value if isinstance(value, str) else _NO
    if origin is Literal:
        return value if value in get_args(kind) else _NO
    if origin is dict:
        return value if isinstance(value, dict) else _NO
    if _choices(origin) and isinstance(value, str):
        return value
    return value if isinstance(origin, type) and isinstance(value, origin) else _NO


def _describe(options: list[Any]) -> str:
    names = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "text",
        list: "a list",
        dict: "a mapping",
    }
    found = [
        f"one of {', '.join(_choices(kind))}"
        if _choices(kind)
        else names.get(get_origin(kind) or kind, getattr(kind, "__name__", str(kind)))
        for kind in options
        if kind is not type(None)
    ]
    return " or ".join(dict.fromkeys(found))
