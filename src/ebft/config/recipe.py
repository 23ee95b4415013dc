"""Recipes: YAML files and command-line flags, turned into checked settings. Flags win over the file.

Names, ebft's own values and what is missing are checked before transformers is imported, which takes seconds: a slip
on the command line is answered at once.
"""

from __future__ import annotations

import typing
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ebft.config.baseline_options import RLVROptions, SFTOptions
from ebft.config.convert import convert
from ebft.config.defaults import TransformersDefaults
from ebft.config.fields import default_of
from ebft.config.method import MethodConfig
from ebft.config.model_and_data import DataConfig, ModelConfig
from ebft.config.running import RunningConfig
from ebft.config.secrets import take_secrets
from ebft.config.shipped import find_recipe
from ebft.config.synonyms import suggestion
from ebft.config.transformers_settings import transformers_settings
from ebft.data.rows import check_hub, check_place
from ebft.errors import ConfigError

if TYPE_CHECKING:
    from ebft.config.training import EBFTConfig

UNNAMED = "unnamed"  # stands for the output folder of a dry run that was given none: it writes nothing
# The commands that train, and what each adds to the settings of `ebft train`.
TRAINING: dict[str, tuple[type, ...]] = {"train": (), "sft": (SFTOptions,), "rlvr": (RLVROptions,)}


@dataclass
class Recipe:
    model: ModelConfig
    data: DataConfig
    training: EBFTConfig
    given: dict[str, Any]  # what the user set, by file or flag
    command: str = "train"


def settings_class(command: str = "train") -> type[EBFTConfig]:
    """The settings of a command as one class, which imports transformers."""
    from ebft.config.baseline_settings import RLVRSettings, SFTSettings
    from ebft.config.training import EBFTConfig

    return {"train": EBFTConfig, "sft": SFTSettings, "rlvr": RLVRSettings}[command]


def sections(command: str = "train") -> tuple[type, ...]:
    return (ModelConfig, DataConfig, settings_class(command))


def field_types(command: str = "train") -> dict[str, Any]:
    return _types(sections(command))


@cache
def _types(classes: tuple[type, ...]) -> dict[str, Any]:
    types: dict[str, Any] = {}
    for cls in classes:
        hints = typing.get_type_hints(cls)
        types.update({f.name: hints[f.name] for f in fields(cls) if f.init})
    return types


def load_recipe(file: str | Path | None, overrides: dict[str, Any], command: str = "train") -> Recipe:
    """Read a recipe, apply the flags, check names and types, and build the three configurations."""
    values = take_secrets({**(read_values(file) if file is not None else {}), **overrides})
    check_values(values, command)
    training, types = settings_class(command), field_types(command)
    given = {name: convert(name, value, types[name]) for name, value in values.items()}  # in the order given

    def of(cls: type) -> Any:
        return cls(**{f.name: given[f.name] for f in fields(cls) if f.init and f.name in given})

    return Recipe(of(ModelConfig), of(DataConfig), of(training), given, command)


def check_values(values: dict[str, Any], command: str = "train") -> dict[str, Any]:
    """What can be said about the values of a recipe without transformers. Returns them as their types."""
    if "sweep" in values:
        raise ConfigError("the recipe holds a `sweep`, which is many runs; start them with `ebft sweep`")
    if "methods" in values:
        raise ConfigError("this is a study, which is many runs; start them with `ebft study run`")
    if values.get("resume_from_checkpoint"):  # of transformers, where nothing but example scripts reads it
        raise ConfigError(
            "resume_from_checkpoint is not used: --resume continues the run in output_dir from its last checkpoint, "
            "and --model CHECKPOINT begins a new run with its weights"
        )
    types = {name: setting.type for name, setting in transformers_settings().items()} | _own_types(command)
    checked: dict[str, Any] = {}
    for name, value in values.items():
        if name not in types:
            for other in ("sft", "rlvr"):
                if name in _own_types(other):
                    raise ConfigError(
                        f"unknown setting {name!r} of `ebft {command}`: it is one of `ebft {other}`; leave it out "
                        "here, or in a study put it under that method"
                    )
            raise ConfigError(f"unknown setting {name!r}{suggestion(str(name), types)}")
        if types[name] is not None:
            checked[name] = convert(name, value, types[name])
    if not checked.get("model"):
        raise ConfigError(
            "no model: set `model` to a folder or hub name, or to smollm2-135m after `ebft fetch smollm2-135m`"
        )
    if not checked.get("dataset"):
        raise ConfigError(
            "no data: set `dataset` to a file, a folder, a hub name or a built-in such as stdlib-functions"
        )
    if not checked.get("output_dir"):
        raise ConfigError("no output folder: set `output_dir`")
    for cls in (ModelConfig, DataConfig, MethodConfig, RunningConfig):
        cls(**{f.name: checked[f.name] for f in fields(cls) if f.name in checked})
    return checked


def check_places(values: dict[str, Any]) -> None:
    """Data in local files must be there: said before anything slow is imported."""
    for source in _sources(values):
        check_place(source)


def check_hub_datasets(values: dict[str, Any]) -> None:
    """Datasets of the hub must be in the cache, or the hub must be there: said before anything slow is imported."""
    for source in _sources(values):
        check_hub(source)


def _sources(values: dict[str, Any]) -> list[str]:
    found: list[str] = []
    for name in ("dataset", "validation_dataset"):
        sources = values.get(name) or []
        found += sources.split(",") if isinstance(sources, str) else map(str, sources)
    return found


def known_settings(command: str = "train") -> list[str]:
    """Every name that a recipe of the command may hold, without importing transformers."""
    return [*_own_types(command), *transformers_settings()]


def _own_types(command: str) -> dict[str, Any]:
    return _types(own_sections(command))


def own_sections(command: str) -> tuple[type, ...]:
    """The classes of the settings that ebft declares itself; where two declare one, the last wins."""
    return (ModelConfig, DataConfig, MethodConfig, RunningConfig, TransformersDefaults, *TRAINING[command])


def read_values(file: str | Path) -> dict[str, Any]:
    """What stands in a recipe, a file or one of the package, unchecked."""
    path = find_recipe(file)
    try:
        text = path.read_text(encoding="utf-8")
        if _depth(text) > 100:  # the parser takes minutes over thousands of brackets
            raise RecursionError
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML ({' '.join(str(error).split())})") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text") from None
    except (RecursionError, MemoryError):
        raise ConfigError(f"{path}: nested too deeply") from None
    except ValueError as error:  # a date that is none, a number of thousands of digits
        raise ConfigError(f"{path}: not valid YAML ({error})") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: a recipe is a list of `setting: value` lines")
    return values


def _depth(text: str) -> int:
    """How deeply the brackets of a text are nested."""
    depth = deepest = 0
    for character in text:
        depth = max(0, depth + (character in "[{") - (character in "]}"))
        deepest = max(deepest, depth)
    return deepest


def as_given(name: str, values: dict[str, Any], command: str = "train") -> Any:
    """What a setting is with these values: the one given, as its type, or the default."""
    if name in values:
        return convert(name, values[name], field_types(command)[name])
    return next(default_of(f) for cls in sections(command) for f in fields(cls) if f.name == name)
