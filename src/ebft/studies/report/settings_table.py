"""What runs were given: in what they differ, and what they share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from ebft.config.method import ONLY_EBFT
from ebft.runtime.files import read_json
from ebft.studies.report.tables import Column, Table, cell
from ebft.studies.runs import Run

# Every run has its own.
_NOT_A_DIFFERENCE = ("output_dir", "logging_dir", "seed", "data_seed", "run_name")


def settings_of(runs: Mapping[str, Run | None]) -> tuple[dict[str, dict[str, Any]], dict[str, set[str]]]:
    """Every setting that each run uses, and the names that its recipe set."""
    resolved, given = {}, {}
    for title, run in runs.items():
        settings = read_json(run.folder / "resolved.json") if run is not None else None
        if run is None or not isinstance(settings, dict):
            continue
        idle = () if run.method == "ebft" else ONLY_EBFT
        resolved[title] = {name: value for name, value in settings.items() if name not in idle}
        recipe = run.folder / "recipe.yaml"
        values = yaml.safe_load(recipe.read_text(encoding="utf-8")) if recipe.is_file() else None
        given[title] = set(values) if isinstance(values, dict) else set()
    return resolved, given


def settings_table(resolved: dict[str, dict[str, Any]], given: dict[str, set[str]]) -> Table | None:
    """Settings in which rows differ, and nothing else of them.

    resolved: every setting of each row's first run; given: the names that its recipe set.
    """
    resolved = {title: _with_effect(settings) for title, settings in resolved.items()}
    names: list[str] = []
    for name in dict.fromkeys(name for settings in resolved.values() for name in settings):
        if name in _NOT_A_DIFFERENCE:
            continue
        having = [settings[name] for settings in resolved.values() if name in settings]
        everywhere = len(having) == len(resolved)
        set_by_someone = any(name in names for names in given.values())
        differs = any(value != having[0] for value in having)
        if (everywhere and differs) or (set_by_someone and (differs or not everywhere)):
            names.append(name)
    if len(resolved) < 2 or not names:
        return None
    columns = [Column("setting", text=True), *(Column(title, text=True) for title in resolved)]
    rows = [
        [cell(name), *(cell(_setting(settings[name]) if name in settings else "") for settings in resolved.values())]
        for name in names
    ]
    return Table("settings", "What differs between the settings", columns, rows)


def shared_settings_table(resolved: dict[str, dict[str, Any]], given: dict[str, set[str]]) -> Table | None:
    """Settings that recipes set and that are the same in every row: model, data, lengths."""
    first, *others = [_with_effect(settings) for settings in resolved.values()] or [{}]
    set_by_someone = set().union(*given.values())
    rows = [
        [cell(name), cell(_setting(value))]
        for name, value in first.items()
        if name in set_by_someone and name not in _NOT_A_DIFFERENCE
        if all(name in settings and settings[name] == value for settings in others)
    ]
    columns = [Column("setting", text=True), Column("in every row", text=True)]
    return Table("shared-settings", "What all rows share", columns, rows) if rows else None


def _with_effect(settings: dict[str, Any]) -> dict[str, Any]:
    by_steps = settings.get("max_steps", -1) > 0  # which then also ends the epochs
    return {name: value for name, value in settings.items() if not (by_steps and name == "num_train_epochs")}


def _setting(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, str) and value.startswith("/"):
        return value.rstrip("/").rpartition("/")[2]
    return "none" if value is None else str(value)
