"""Recipes: YAML files and command-line flags, turned into checked settings. Flags win over the file."""

from __future__ import annotations

import typing
from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import yaml

from ebft.config.training import DataConfig, EBFTConfig, ModelConfig
from ebft.errors import ConfigError, nearest


@dataclass
class Recipe:
    model: ModelConfig
    data: DataConfig
    training: EBFTConfig
    given: dict[str, Any]  # what the user set, by file or flag


SECTIONS: tuple[type, ...] = (ModelConfig, DataConfig, EBFTConfig)


def sections(training: type[EBFTConfig] = EBFTConfig) -> tuple[type, ...]:
    return (ModelConfig, DataConfig, training)


def known_fields(training: type[EBFTConfig] = EBFTConfig) -> dict[str, type]:
    return {f.name: section for section in sections(training) for f in fields(section) if f.init}


def field_types(training: type[EBFTConfig] = EBFTConfig) -> dict[str, Any]:
    types: dict[str, Any] = {}
    for section in sections(training):
        hints = typing.get_type_hints(section)
        types.update({f.name: hints[f.name] for f in fields(section) if f.init})
    return types


def load_recipe(file: str | Path | None, overrides: dict[str, Any], training: type[EBFTConfig] = EBFTConfig) -> Recipe:
    """Read a recipe, apply the flags, check names and types, and build the three configurations.

    `training` is EBFTConfig, or the settings of a baseline, which extend it.
    """
    values = {**(read_values(file) if file is not None else {}), **overrides}
    if "sweep" in values:
        raise ConfigError("the recipe holds a `sweep`, which is many runs; start them with `ebft sweep`")
    owners, types = known_fields(training), field_types(training)
    checked: dict[type, dict[str, Any]] = {section: {} for section in sections(training)}
    for name, value in values.items():
        if name not in owners:
            raise ConfigError(f"unknown setting {name!r}{nearest(str(name), owners)}")
        checked[owners[name]][name] = convert(name, value, types[name])
    model = ModelConfig(**checked[ModelConfig])
    data = DataConfig(**checked[DataConfig])
    if not model.model:
        raise ConfigError(
            "no model: set `model` to a folder or hub name, or to smollm2-135m after `ebft fetch smollm2-135m`"
        )
    if not data.dataset:
        raise ConfigError(
            "no data: set `dataset` to a file, a folder, a hub name or a built-in such as stdlib-functions"
        )
    if not checked[training].get("output_dir"):
        raise ConfigError("no output folder: set `output_dir`")
    given = {name: checked[owners[name]][name] for name in values}  # as their types, in the order given
    return Recipe(model, data, training(**checked[training]), given)


def read_values(file: str | Path) -> dict[str, Any]:
    """What stands in a recipe, unchecked."""
    path = Path(file)
    if not path.is_file():
        raise ConfigError(f"{path}: no such recipe")
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML ({' '.join(str(error).split())})") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: a recipe is a list of `setting: value` lines")
    return values


def convert(name: str, value: Any, annotation: Any) -> Any:
    """The value as the field's type, from YAML or from the text of a flag."""
    options = _alternatives(annotation)
    if value is None or (isinstance(value, str) and value.lower() in ("none", "null")):
        if type(None) in options:
            return "none" if name == "report_to" else None
        if value is None or str not in options:
            raise ConfigError(f"{name} must not be empty; it takes {_describe(options)}")
    for choices in (_values(kind) for kind in options if _is_enumeration(kind)):
        if value is False and "no" in choices:  # what YAML makes of a bare `no`
            return "no"
        if isinstance(value, str) and value not in choices:
            raise ConfigError(f"{name}={value!r} is not one of {', '.join(choices)}{nearest(value, choices)}")
    for kind in options:
        converted = _try(value, kind)
        if converted is not _NO:
            return converted
    raise ConfigError(f"{name}={value!r} is not {_describe(options)}")


_NO = object()


def _is_enumeration(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Enum)


def _values(enumeration: Any) -> list[str]:
    return [str(member.value) for member in enumeration]


def _alternatives(annotation: Any) -> list[Any]:
    if get_origin(annotation) in (Union, UnionType):
        return [kind for option in get_args(annotation) for kind in _alternatives(option)]
    return [annotation]


def _try(value: Any, kind: Any) -> Any:
    origin = get_origin(kind) or kind
    if origin is list:
        items = [v.strip() for v in value.split(",") if v.strip()] if isinstance(value, str) else value
        items = items if isinstance(items, list) else [items]
        inner = get_args(kind)[0] if get_args(kind) else str
        converted = [_try(item, inner) for item in items]
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
        except (TypeError, ValueError):
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
    if _is_enumeration(origin) and isinstance(value, str):
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
        f"one of {', '.join(_values(kind))}"
        if _is_enumeration(kind)
        else names.get(get_origin(kind) or kind, getattr(kind, "__name__", str(kind)))
        for kind in options
        if kind is not type(None)
    ]
    return " or ".join(dict.fromkeys(found))


def as_given(name: str, values: dict[str, Any], training: type[EBFTConfig] = EBFTConfig) -> Any:
    """What a setting is with these values: the one given, as its type, or the default."""
    if name in values:
        return convert(name, values[name], field_types(training)[name])
    default = next(f for f in fields(known_fields(training)[name]) if f.name == name)
    return default.default_factory() if callable(default.default_factory) else default.default
