"""Recipes: YAML files, by path or by the name of one that comes with ebft, and flags, which win over the file."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, fields
from inspect import get_annotations
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from ebft.config.data import DataConfig, ModelConfig
from ebft.config.method import MethodConfig
from ebft.config.settings import Parser, Setting, Values, check_name, default_of, typed, types_of
from ebft.data.rows import check_source
from ebft.errors import ConfigError, nearest

if TYPE_CHECKING:
    from ebft.config.training import EBFTConfig

RECIPES = Path(__file__).parents[1] / "recipes"
TRAINING = ("train", "sft", "rlvr")  # the commands that train
REQUIRED = ("model", "dataset", "output_dir", "rewards")
# Of transformers' settings, those that most runs set: the others do not show in the help.
_COMMON = """output_dir max_steps max_grad_norm bf16 gradient_checkpointing log_level seed
    eval_strategy eval_steps save_strategy save_steps load_best_model_at_end metric_for_best_model use_cpu"""


@dataclass
class Recipe:
    model: ModelConfig
    data: DataConfig
    training: EBFTConfig
    given: Values  # what the user set, by file or flag
    command: str = "train"


def sections(command: str = "train") -> tuple[type, ...]:
    """The dataclasses of a command's settings. Importing transformers, which the last needs, takes seconds."""
    from ebft.config.training import EBFTConfig, RLVRSettings, SFTSettings

    return ModelConfig, DataConfig, {"train": EBFTConfig, "sft": SFTSettings, "rlvr": RLVRSettings}[command]


def declared(command: str = "train") -> dict[str, Setting]:
    """The settings of a command by their names."""
    return {f.name: f for section in sections(command) for f in fields(section) if f.init}


def field_types(command: str = "train") -> Values:
    return {name: kind for section in sections(command) for name, kind in types_of(section).items()}


def as_given(name: str, values: Mapping[str, object], command: str = "train") -> object:
    """What a setting is with these values: the one given, as its type, or the default."""
    if name in values:
        return typed(name, values[name], field_types(command)[name])
    return default_of(declared(command)[name])


def groups(command: str = "train") -> dict[str, list[Setting]]:
    """The settings of a command by titles for help and documentation: each where it is declared first."""
    titles = {"ModelConfig": "The model", "DataConfig": "The data", "MethodConfig": "The method"}
    titles |= {"EBFTConfig": "Running", "TrainingArguments": "Settings of transformers' TrainingArguments"}
    left = declared(command)
    found: dict[str, list[Setting]] = {}
    for owner in (owner for section in sections(command) for owner in section.__mro__[:-1]):
        if own := [left.pop(name) for name in get_annotations(owner) if name in left]:
            found[titles.get(owner.__name__, "The baseline")] = own
    return found


def training_parser(command: str) -> Parser:
    """Of a command that trains: every setting as a flag."""
    usage = "--config recipe.yaml [--setting value ...] [--resume] [--dry-run] [--launch N]"
    text = "Settings come from the recipe; flags win over it. model, dataset and output_dir must be given."
    parser = Parser(command, text, usage)
    parser.add_argument("--config", metavar="F", help="a YAML file, or the name of a recipe that comes with ebft")
    for title, settings in groups(command).items():
        hidden = [f.name for f in settings if "transformers" in title and f.name not in _COMMON.split()]
        parser.add_settings(title, [(f.name, f) for f in settings], hidden)
    parser.add_argument("--resume", action="store_true", help="resume from the last complete checkpoint in output_dir")
    parser.add_argument("--dry-run", action="store_true", help="load the data, print the plan and an example, and stop")
    parser.add_argument("--launch", metavar="N", help="start N processes on this machine, one per GPU")
    return parser


def check_early(arguments: list[str]) -> Values:
    """The values of a command's flags and recipe, those looked at that need no transformers, whose import takes
    seconds."""
    parser, parts = Parser("", ""), (ModelConfig, DataConfig, MethodConfig)
    parser.add_argument("--config")
    parser.add_settings("", [(f.name, f) for part in parts for f in fields(part)])
    options, _ = parser.parse_known_args([word for word in arguments if word not in ("-h", "--help")])
    values = {**read_values(options.config), **options.settings}
    for part in parts:
        part(**{name: typed(name, values[name], kind) for name, kind in types_of(part).items() if name in values})
    return values


def load_recipe(file: str | Path | None, overrides: Mapping[str, object], command: str = "train") -> Recipe:
    """Read a recipe, apply the flags, and build the three configurations, which check their values."""
    values = {**read_values(file), **overrides}
    if token := values.pop("hub_token", None):
        os.environ["HF_TOKEN"] = str(token)  # where libraries look; recipes, cards and checkpoints then hold no secret
    given = check_given(values, command)
    model, data, training = (
        section(**{name: given[name] for name in types_of(section) if name in given}) for section in sections(command)
    )
    return Recipe(model, data, training, given, command)


def check_given(values: Mapping[str, object], command: str) -> Values:
    """The values as their types; all names are known, and what a run cannot do without is there."""
    types = field_types(command)
    for name in values:
        check_name(str(name), types, "setting", f" of `ebft {command}`")
    given = {name: typed(name, value, types[name]) for name, value in values.items()}
    for name in REQUIRED:
        if name in types and not given.get(name):
            raise ConfigError(f"no {name}: every run needs one; give --{name}, or --config with a recipe that has it")
    return given


def check_datasets(values: Mapping[str, object]) -> None:
    """Data in local files are there, and those of the hub are in the cache, or the hub can be reached."""
    for name in ("dataset", "validation_dataset"):
        for source in typed(name, values.get(name) or [], list[str]):
            check_source(source)


class _Loader(yaml.SafeLoader):
    """Of a name that stands twice, YAML's own takes the last without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:
        names = [name.value for name, _ in node.value]
        if twice := [name for name in names if names.count(name) > 1]:
            raise yaml.YAMLError(f"{twice[0]!r} stands there twice")
        return super().construct_mapping(node, deep)


def read_values(file: str | Path | None) -> Values:
    """What stands in a recipe, a file or one of the package, unchecked."""
    if file is None:
        return {}
    path = find_recipe(file)
    try:
        return dict(yaml.load(path.read_text(encoding="utf-8"), _Loader))
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:  # also a date that is none, or no UTF-8
        why = " ".join(str(error).split())
        raise ConfigError(f"{path}: not a list of `setting: value` lines in YAML ({why})") from None


def shipped_names() -> list[str]:
    return sorted(file.relative_to(RECIPES).with_suffix("").as_posix() for file in RECIPES.rglob("*.yaml"))


def find_recipe(name: str | Path) -> Path:
    """The file of a recipe or study: a path, or else the name of one in the package."""
    for file in Path(name).expanduser(), RECIPES / f"{name}.yaml":
        if file.is_file():
            return file
    near = nearest(str(name), shipped_names())
    raise ConfigError(f"{name}: no such recipe or study: neither a file nor one that comes with ebft{near}")
