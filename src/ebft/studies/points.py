"""The points of a sweep: every combination of the values that some settings take, each a recipe of its own.

Everything is checked before anything starts: names, types, and each point as a whole.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ebft.config.convert import convert
from ebft.config.recipe import UNNAMED, Recipe, field_types, known_settings, load_recipe, read_values
from ebft.config.secrets import is_secret
from ebft.config.synonyms import suggestion
from ebft.errors import ConfigError
from ebft.runtime.files import read_json, write_text

SECTION = "sweep"  # of a recipe
POINTS, LOGS = "points", "logs"
# Every point is one run, in a folder of its own.
_FIXED = ("output_dir", SECTION)
_LONGEST_NAME = 120


@dataclass(frozen=True)
class Point:
    name: str
    settings: dict[str, Any]  # the swept ones
    given: dict[str, Any]  # all settings of its recipe
    folder: Path  # of the sweep
    command: str = "train"

    @property
    def arguments(self) -> list[str]:
        # --resume starts from the beginning where there is no checkpoint.
        return [self.command, "--config", str(self.recipe.resolve()), "--resume"]

    @property
    def on_cpu(self) -> bool:
        return bool(self.given.get("use_cpu"))

    @property
    def recipe(self) -> Path:
        return self.folder / POINTS / f"{self.name}.yaml"

    @property
    def run(self) -> Path:
        return self.folder / self.name

    @property
    def log(self) -> Path:
        return self.folder / LOGS / f"{self.name}.log"

    def results(self) -> dict[str, Any]:
        return read_json(self.run / "results.json") or {}

    @property
    def finished(self) -> bool:
        """Whether this very recipe has run to its end; after a change, such as more steps, it has to continue."""
        return has_run(self.run, self.given)

    def write(self) -> None:
        self.recipe.parent.mkdir(parents=True, exist_ok=True)
        shown = ", ".join(f"{name}={value}" for name, value in self.settings.items())
        text = f"# The point {shown} of a sweep.\n" + yaml.safe_dump(self.given, sort_keys=False)
        write_text(self.recipe, text)


def has_run(run: Path, given: dict[str, Any]) -> bool:
    """Whether the run in this folder has ended, with these settings."""
    recipe = run / "recipe.yaml"
    if "steps" not in (read_json(run / "results.json") or {}) or not recipe.is_file():
        return False
    before, now = (_load_yaml(text) for text in (recipe.read_text(encoding="utf-8"), yaml.safe_dump(given)))
    return isinstance(before, dict) and _moved(before, now) == now


def _moved(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run as they would be if it had been made where it is now: its folder may have been copied,
    alone or with the study or the whole project around it, and paths into what was copied went along."""
    old, new = (list(Path(str(given.get("output_dir"))).parts) for given in (before, now))
    while old and new and old[-1] == new[-1]:
        old.pop()
        new.pop()
    if not old or not new:
        return before
    was, is_now = (str(Path(*parts)) for parts in (old, new))

    def there(value: Any) -> Any:
        if isinstance(value, list):
            return [there(item) for item in value]
        inside = isinstance(value, str) and (value == was or value.startswith(f"{was}/"))
        return is_now + value[len(was) :] if inside else value

    return {name: there(value) for name, value in before.items()}


def _load_yaml(text: str) -> Any:
    """By the C library where there is one: studies ask this often."""
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def points(
    file: str | Path | None,
    overrides: dict[str, Any],
    sets: Sequence[str],
    command: str = "train",
    writes: bool = True,
) -> list[Point]:
    """The points of a recipe's `sweep:` section and of `--set name=value,value`, which wins.

    writes: whether something will be written, for which there must be a folder.
    """
    values = {**(read_values(file) if file is not None else {}), **overrides}
    grid = _checked({**_section(values.pop(SECTION, {})), **parse_sets(sets)}, command)
    output = values.get("output_dir") or ("" if writes else UNNAMED)
    if not isinstance(output, str) or not output:
        raise ConfigError("no output folder: set `output_dir`, in which every point gets a folder of its own")
    folder = Path(output).expanduser()
    check_folder(folder)
    if (folder / "recipe.yaml").exists():
        raise ConfigError(f"output_dir={folder} holds a run; choose another folder for the sweep")
    found = []
    for combination in itertools.product(*grid.values()):
        settings = dict(zip(grid, combination, strict=True))
        name = name_of(settings)
        whole = {**values, **settings, "output_dir": str(folder / name)}
        try:
            recipe = load_for_elsewhere(whole, command)
        except ValueError as error:
            raise ConfigError(f"{name}: {error}") from None
        found.append(Point(name, settings, recipe.given, folder, command))
    if len({point.name for point in found}) < len(found):
        raise ConfigError("two points of the sweep have the same name; give every value once")
    return found


def check_folder(folder: Path) -> None:
    """A folder that could be made, or is there."""
    for place in (folder, *folder.parents):
        if place.exists():
            if not place.is_dir():
                raise ConfigError(f"output_dir={folder}: {place} is a file; choose a folder")
            return


def load_for_elsewhere(values: dict[str, Any], command: str) -> Recipe:
    """A checked recipe that may run on another machine: a login node without a GPU can check bf16 runs too."""
    import torch

    if torch.cuda.is_available() or "use_cpu" in values:
        return load_recipe(None, values, command)
    recipe = load_recipe(None, {**values, "use_cpu": True}, command)
    del recipe.given["use_cpu"]
    return recipe


def _section(given: Any) -> dict[str, list[Any]]:
    if not isinstance(given, dict) or not all(isinstance(values, list) for values in given.values()):
        raise ConfigError(f"`{SECTION}` is a mapping of settings to lists of values, such as `gamma: [0, 0.1]`")
    return given


def parse_sets(sets: Sequence[str]) -> dict[str, list[str]]:
    """The values of `--set name=value,value` by name."""
    found: dict[str, list[str]] = {}
    for text in sets:
        name, equals, values = text.partition("=")
        if not equals or not values:
            raise ConfigError(f"--set {text}: write --set name=value,value")
        name = name.strip().replace("-", "_")
        if name in found:
            raise ConfigError(f"--set {name} is given twice; separate its values by commas")
        found[name] = [value.strip() for value in values.split(",")]
    return found


def _checked(grid: dict[str, list[Any]], command: str) -> dict[str, list[Any]]:
    if not grid:
        raise ConfigError(f"nothing to sweep: give --set name=value,value, or a `{SECTION}:` section in the recipe")
    known = known_settings(command)
    for name, values in grid.items():
        if name in _FIXED:
            raise ConfigError(f"{name} cannot be swept; every point gets a folder of its own")
        if is_secret(name):
            raise ConfigError(f"{name} cannot be swept: its values would be names of folders")
        if name not in known:
            raise ConfigError(f"unknown setting {name!r} to sweep{suggestion(str(name), known)}")
        if not values:
            raise ConfigError(f"{name} has no values to sweep")
    types = field_types(command)
    return {name: [convert(name, value, types[name]) for value in values] for name, values in grid.items()}


def name_of(settings: dict[str, Any]) -> str:
    """A name that is safe for a folder: `learning_rate=1e-06,gamma=0.1`."""
    shown = ",".join(f"{name}={_shown(value)}" for name, value in settings.items())
    return re.sub(r"[^\w.,=+-]+", "-", shown)[:_LONGEST_NAME]


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, str):
        return value.rstrip("/").rpartition("/")[2]  # the last part of a path or hub name
    if isinstance(value, list):
        return "+".join(_shown(item) for item in value)
    return str(value)
