"""How a setting is declared, read, checked and offered as a flag: once, for every command, recipe and study.

A setting is a field of a dataclass with a default and a help text (`option`). What a recipe or a flag gives becomes the
field's type in `typed`; the dataclass looks at the values when it is made (`check`), from Python as well.
"""

from __future__ import annotations

import argparse
import os
import re
import typing
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, field, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, NoReturn, Self, Union, get_args, get_origin

from ebft.errors import ConfigError, nearest
from ebft.runtime.files import Json
from ebft.runtime.messages import LEVELS, show_messages

# What TRL and others call a setting, whose spelling would lead astray. The first that the command knows is meant.
_ELSEWHERE = {"lr": "learning_rate", "epochs": "num_train_epochs", "batch_size": "per_device_train_batch_size"}
_ELSEWHERE |= {"base_model": "model", "model_name_or_path": "model", "torch_dtype": "model_dtype dtype"}
_ELSEWHERE |= {"dataset_name": "dataset", "dataset_text_field": "text_column", "assistant_only_loss": "answer_only"}
_ELSEWHERE |= {"max_length": "max_new_tokens context_length", "max_seq_length": "max_length context_length"}
_ELSEWHERE |= {"max_completion_length": "max_new_tokens horizon", "num_generations": "generations samples"}
_ELSEWHERE |= {"beta": "kl_coefficient kl_weight", "reward_funcs": "rewards", "use_peft": "lora"}
_ELSEWHERE["completion_only_loss"] = "answer_only"
Setting = Field[Any]
Values = Json  # of settings, by their names
_KINDS = {int: "a whole number", float: "a number", bool: "true or false", list: "a list", dict: "a mapping"}
_YES_NO = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def option(default: object, help: str, least: float | None = None) -> Any:
    """A field of a dataclass of settings. least: the smallest value that it may have."""
    about = {"help": help, "least": least}
    if isinstance(default, list | dict):
        return field(default_factory=default.copy, metadata=about)
    return field(default=default, metadata=about)


def default_of(f: Setting) -> Any:
    if f.default_factory is not MISSING:
        return f.default_factory()
    return None if f.default is MISSING else f.default


@cache
def types_of(cls: type) -> Values:
    """The type of every setting that a dataclass takes."""
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in fields(cls) if f.init}


class Named:
    """Base of dataclasses of settings, which answer unknown names in Python as the command does."""

    def __new__(cls, *_: object, **given: object) -> Self:
        for name in given:
            check_name(name, types_of(cls), "setting", f" of {cls.__name__}")  # type: ignore[arg-type]
        return super().__new__(cls)


def check(settings: object) -> None:
    """Settings with choices hold one of them, and those that are set are large enough."""
    cls: type = type(settings)
    for f in fields(cls):
        value, kind, least = getattr(settings, f.name), types_of(cls).get(f.name), f.metadata.get("least")
        values, kind = (value, *get_args(kind)) if get_origin(kind) is list else ([value], kind)
        choices = get_args(kind) if get_origin(kind) is Literal else values
        for odd in [each for each in values if each not in choices]:
            raise ConfigError(f"{f.name}={odd!r} is not one of {', '.join(choices)}{nearest(str(odd), choices)}")
        if least is not None and not all(one is None or one >= least for one in values):  # also where it is nan
            raise ConfigError(f"{f.name}={value} must be at least {least}")


def check_name(name: str, known: Collection[str], what: str, of: str = "") -> None:
    """An error about an unknown name says what it is called here, or is spelt like."""
    if name in known:
        return
    is_flag, meant = name.startswith("-"), name.lstrip("-").replace("-", "_")
    words = [f"--{w}".replace("_", "-") if is_flag else w for w in (*_ELSEWHERE.get(meant, "").split(), meant)]
    found = [word for word in words if word in known]
    near = f"; here it is called {found[0]!r}" if found else nearest(words[-1], known)
    raise ConfigError(f"unknown {what} {name!r}{of}{near}")


def typed(name: str, value: object, kind: object) -> Any:
    """A value of YAML, or the text of a flag, as the type of its setting."""
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if {NoneType, Any} & {*kinds} and value in (None, "none", "None", "null"):
        return None
    if value is False and str in kinds and bool not in kinds:
        return "no"  # what YAML makes of a bare `no`
    if {int, float} <= {*kinds} and not re.fullmatch(r"\s*[-+]?\d+\s*", str(value)):
        kinds = (float,)  # 1 and 1.0 may mean different things
    for each in kinds:
        if get_origin(each) is list:
            items = [item.strip() for item in value.split(",")] if isinstance(value, str) else value
            items = items if isinstance(items, list) else [items]
            return [typed(name, item, *get_args(each)) for item in items if item not in ("", "none")]
        with suppress(TypeError, ValueError, OverflowError):
            if (read := _read(value, get_origin(each) or each)) is not None:
                return read
    meant = dict.fromkeys(_KINDS.get(get_origin(each) or each, "text") for each in kinds if each is not NoneType)
    raise ConfigError(f"{name}={value!r} is not {' or '.join(meant)}")


def _read(value: Any, kind: Any) -> object:
    """None where it is no such thing."""
    if kind is bool:
        return _YES_NO.get(str(value).lower())
    if kind not in (int, float):
        return value if isinstance(value, {Literal: str, Any: object}.get(kind, kind)) else None
    number = value if isinstance(value, int) else float(value)
    return None if isinstance(value, bool) or kind(number) != number else kind(number)


class Parser(argparse.ArgumentParser):
    """argparse with settings as flags and errors of one line that name what was meant; takes - and _ alike."""

    def __init__(self, command: str, description: str, usage: str | None = None) -> None:
        usage = usage and f"ebft {command} {usage}"
        super().__init__(f"ebft {command}", usage, description, allow_abbrev=False, formatter_class=_Help)
        self.set_defaults(settings={})

    def add_settings(self, title: str, settings: Iterable[tuple[str, Setting]], hidden: Collection[str] = ()) -> None:
        """Flags for settings, by the names they go by here. What is hidden does not show in the help."""
        group = self.add_argument_group(title)
        for name, f in settings:
            default, flag = default_of(f), name.replace("_", "-")
            flags = [f"--{flag}", f"--no-{flag}"] if isinstance(default, bool) else [f"--{flag}"]
            text = str(f.metadata.get("help", "")).replace("%", "%%")
            if default not in (None, "", False, [], {}) and "default:" not in text:
                text += f" [{', '.join(map(str, default)) if isinstance(default, list) else default}]"
            shown = argparse.SUPPRESS if name in hidden else text
            is_list = isinstance(default, list)
            group.add_argument(*flags, dest=name, nargs="*", action=_Given, const=is_list, help=shown)

    def parse_known_args(self, args: Sequence[str], namespace: Any = None) -> tuple[argparse.Namespace, list[str]]:  # type: ignore[override]
        spelt = {name.replace("-", "_"): name for name in self._option_string_actions}
        words = [re.sub("^--[^=]+", lambda name: spelt.get(name[0].replace("-", "_"), name[0]), word) for word in args]
        return super().parse_known_args(words, namespace)

    def parse_args(self, args: Sequence[str], namespace: argparse.Namespace | None = None) -> argparse.Namespace:  # type: ignore[override]
        """The options; `settings` holds those of `add_settings` that were given."""
        known = self._option_string_actions
        if "--log-level" not in known:  # in training it is a setting
            self.add_argument("--log-level", default="info", choices=LEVELS, help="what is said on the way [info]")
        options, unknown = self.parse_known_args(args, namespace)
        if unknown:
            name = unknown[0].partition("=")[0]
            if not name.startswith("-"):
                raise ConfigError(f"what is {name!r}? Name it, as in --config {name} or --model {name}")
            check_name(name, known, "option")
        show_messages(options.__dict__.pop("log_level", "info"))
        return options

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


class _Given(argparse.Action):
    """`--name value`; several values are a list, none means true, `--no-name` false. Of lists, the next adds to it."""

    def __call__(self, parser: object, namespace: Any, values: Any, option_string: str | None = None) -> None:
        given = values[0] if len(values) == 1 else values or True
        if self.const and values:
            # Runs of a study have commas in their names: a place that is there is one value.
            parts = [[value] if os.path.exists(value) else value.split(",") for value in values]
            given = [*namespace.settings.get(self.dest, []), *(part for some in parts for part in some)]
        off = option_string in self.option_strings[1:]
        namespace.settings = {**namespace.settings, self.dest: False if off else given}


class _Help(argparse.HelpFormatter):
    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        """Without brackets for the values of a setting."""
        return "" if isinstance(action, _Given) else super()._format_args(action, default_metavar)
