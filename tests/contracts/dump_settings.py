"""Every setting of every recipe and study that comes with ebft, as the commands read it.

    python -m tests.contracts.dump_settings > tests/contracts/shipped_settings.yaml

First the defaults of each command, once; then of every recipe, of every method of a study with the first value of its
grid and search, and of the study's evaluation what differs from these.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from ebft.config.evaluation import EvalOptions
from ebft.config.recipe import RECIPES, Recipe, load_recipe, read_values, shipped_names
from ebft.studies.study_file import read_study
from tests.contracts.collect import text_of

FILE = Path(__file__).with_name("shipped_settings.yaml")
COMMANDS = {"ebft": "train", "sft": "sft", "rlvr": "rlvr"}
NEEDED: dict[str, dict[str, Any]] = {"train": {}, "sft": {}, "rlvr": {"rewards": "bleu"}}
# What depends on the machine, or on how much libraries say.
_LEFT_OUT = ("use_cpu", "dataloader_pin_memory", "bf16", "disable_tqdm")


def everything(recipe: Recipe) -> dict[str, Any]:
    values = {
        f.name: getattr(part, f.name)
        for part in (recipe.model, recipe.data, recipe.training)
        for f in fields(part)
        if f.init and f.name not in _LEFT_OUT
    }
    return plain({**values, "sharding": recipe.training.sharding})


def plain(value: Any) -> Any:
    """As JSON has it, which tells 1 from 1.0; enumerations as their values."""
    return json.loads(json.dumps(value, default=lambda other: getattr(other, "value", str(other))))


def load(values: dict[str, Any], command: str) -> dict[str, Any]:
    given = {"model": "m", "dataset": "d", "output_dir": "o", **NEEDED[command], **values, "use_cpu": True}
    return everything(load_recipe(None, given, command))


def differing(values: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    return {n: v for n, v in values.items() if n not in defaults or json.dumps(v) != json.dumps(defaults[n])}


def command_of(name: str) -> str:
    kind = name.rpartition("/")[2].partition("_")[0]
    return kind if kind in COMMANDS.values() else "train"


def methods_of(name: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Of a study: each method's command and settings, put together here and not by the code of studies."""
    given, folder = read_values(name), (RECIPES / name).parent

    def of_file(values: dict[str, Any]) -> dict[str, Any]:
        return read_values(folder / values["recipe"]) if "recipe" in values else {}

    found = {}
    for method, values in given["methods"].items():
        values = values or {}
        tried = {**given.get("grid", {}), **values.get("grid", {}), **values.get("search", {})}
        settings = {**of_file(given), **of_file(values), **given.get("settings", {}), **values.get("settings", {})}
        settings |= {setting: listed[0] for setting, listed in tried.items()}
        found[method] = (COMMANDS[values.get("method", method)], settings)
    return found


def dump() -> dict[str, Any]:
    defaults = {command: load({}, command) for command in COMMANDS.values()}
    of_eval = plain(asdict(EvalOptions.from_values({})))
    found: dict[str, Any] = {
        "defaults of train": defaults["train"],
        "defaults of sft": differing(defaults["sft"], defaults["train"]),
        "defaults of rlvr": differing(defaults["rlvr"], defaults["train"]),
        "defaults of eval": of_eval,
    }
    for name in shipped_names():
        values = read_values(name)
        if "methods" not in values:
            command = command_of(name)
            found[name] = differing(load(values, command), defaults[command])
            continue
        for method, (command, settings) in methods_of(name).items():
            found[f"{name}: {method}"] = differing(load(settings, command), defaults[command])
        evaluation = read_study(name).evaluation
        if evaluation:
            options = plain(asdict(EvalOptions.from_values(evaluation)))
            parts = {part: differing(options.pop(part), of_eval[part]) for part in ("method", "data")}
            found[f"{name}: evaluation"] = {**differing(options, of_eval), **{n: p for n, p in parts.items() if p}}
    return found


if __name__ == "__main__":
    sys.stdout.write(text_of(dump()))
