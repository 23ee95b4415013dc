"""Recipes and studies that come with the package and are found by name: `quickstart`, `paper/qa_code`,
`studies/small/cpu`."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Literal

from ebft.errors import ConfigError

RECIPES = Path(__file__).parents[1] / "recipes"


def shipped_names() -> list[str]:
    return sorted(file.relative_to(RECIPES).with_suffix("").as_posix() for file in RECIPES.rglob("*.yaml"))


def find_recipe(name: str | Path, kind: Literal["recipe", "study"] = "recipe") -> Path:
    """The file of a recipe or study: a path, or else the name of one in the package."""
    path = Path(name).expanduser()
    if path.is_file():
        return path
    if str(name) in (names := shipped_names()):
        return RECIPES / f"{name}.yaml"
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; give a YAML file")
    if kind == "study":
        names = [found for found in names if found.startswith("studies/")]
    raise ConfigError(f"{name}: no such {kind}: neither a file nor one that comes with ebft{_suggestion(name, names)}")


def _suggestion(name: str | Path, names: list[str]) -> str:
    """By the whole name, or by its last part: `qa_code` means `paper/qa_code`."""
    wanted = Path(name).with_suffix("").as_posix().removeprefix("recipes/")
    by_end = [found for found in names if found.rpartition("/")[2] == wanted.rpartition("/")[2]]
    close = list(dict.fromkeys([*by_end, *difflib.get_close_matches(wanted, names, n=3)]))[:3]
    if close:
        return f"; did you mean {' or '.join(map(repr, close))}?"
    inside = [found for found in names if found.startswith(f"{wanted}/")]
    # Too many to name them all: those outside of folders, and the folders, which can be asked for.
    return f"; there are {', '.join(inside or dict.fromkeys(_first_folder(found) for found in names))}"


def _first_folder(name: str) -> str:
    folder = name.rpartition("/")[0]
    return f"{folder}/..." if folder else name
