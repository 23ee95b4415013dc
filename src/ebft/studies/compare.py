"""`ebft compare`: runs side by side, finished or not, by EBFT or a baseline: tables, and what makes them incomparable.

Only files in the runs' folders are read, so runs that are still training can be compared too.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ebft.errors import ConfigError
from ebft.method.measures import NAMES, Estimate, with_error
from ebft.runtime.files import json_ready, write_json, write_text
from ebft.studies import figures
from ebft.studies.report import render
from ebft.studies.runs import AXES, Json, Run, against, better, facts, read_run, what_differs
from ebft.studies.tables import Table, costs_table, settings_tables

PNG, HTML, TABLE = "compare.png", "compare.html", "compare.json"
FOLDER = "compare"  # the default output folder
REWARD = "reward"  # RLVR's own, from training; EBFT's on validation repeats the whitened proxy and is left out


class Comparison(NamedTuple):
    tables: list[Table]
    notes: list[str]
    files: list[Path]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="output folders of ebft train, sft or rlvr")
    parser.add_argument("--output", default=FOLDER, help=f"folder for {PNG}, {HTML} and {TABLE} [{FOLDER}]")
    parser.add_argument("--x", default="steps", choices=AXES, help="horizontal axis of the figures [steps]")
    parser.add_argument("--name", action="append", default=[], help="what to call a run, one for each, in order")


def compare(folders: Sequence[str], output: str, axis: str = "steps", names: Sequence[str] = ()) -> Comparison:
    """The tables of some runs, and the picture, page and numbers in `output`."""
    if names and len(names) != len(folders):
        raise ConfigError(f"--name is given {len(names)} times for {len(folders)} runs; give one for each, or none")
    place = Path(output).expanduser()
    if place.exists() and any(place.iterdir()) and not (place / TABLE).exists():
        raise ConfigError(f"--output {place} is not empty and holds no comparison; choose another folder")
    runs = [read_run(Path(folder)) for folder in folders]
    short = names or [run.name for run in runs]
    for run, folder, name in zip(runs, folders, short, strict=True):
        run.name = folder if len(set(short)) < len(runs) else name  # equal names become paths
    present = {metric for run in runs for metric in run.metrics()} - {REWARD}
    if not present:
        raise ConfigError("no validation metrics in these runs yet; wait for the first evaluation")
    metrics = [*(m for m in NAMES if m in present), *sorted(present - set(NAMES))]
    # Against the first run that says how it was measured.
    reference = next((run for run in runs if run.validation is not None), None)
    colors = figures.colors_of(run.name for run in runs)
    curves = figures.training_curves([(run.name, [run]) for run in runs], reference, axis)
    if not curves:
        raise ConfigError(f"--x {axis}: these runs have not logged it; use --x steps")
    states = [([run.name, run.method], "finished" if run.finished else "not finished", run) for run in runs]
    every = [_metrics_table(runs, metrics), _differences_table(runs, metrics), costs_table(states, ("run", "method"))]
    every += settings_tables({run.name: run for run in runs})[:1]
    notes = _notes(runs, reference)
    place.mkdir(parents=True, exist_ok=True)
    found = Comparison([t for t in every if t is not None], notes, [place / name for name in (TABLE, PNG, HTML)])
    write_json(
        place / TABLE, json_ready({"runs": {r.name: _numbers(r, runs[0], metrics) for r in runs}, "notes": notes})
    )
    figure = figures.curves_figure(curves, axis, colors)
    (place / PNG).write_bytes(figures.saved(figure, "png"))
    page: Json = {"title": "Runs compared", "about": "Made by ebft compare.", "notes": notes, "tables": found.tables}
    write_text(place / HTML, render(page, {f"Over {AXES[axis][1]}": figure}))
    return found


def _metrics_table(runs: Sequence[Run], metrics: Sequence[str]) -> Table:
    columns = ["run", "method", "metric", "first", "best", "at step", "last", "at step"]
    table = Table("validation", "Validation", columns, [])
    for metric, run in ((metric, run) for metric in [*metrics, REWARD] for run in runs):
        key = metric if metric == REWARD else f"eval_{metric}"
        if entries := run.rewards() if metric == REWARD else run.measured(key):
            last, best = entries[-1], better(metric)(entries, key=lambda entry: entry[key])
            first, top, final = (with_error(e[key], e.get(f"{key}_se")) for e in (entries[0], best, last))
            left = last.get("model_step", last["step"])  # the best model may have been loaded after the last step
            at = str(left) if left == last["step"] else f"{left}, kept"
            table.rows.append([run.name, run.method, facts(metric).title, first, top, str(best["step"]), final, at])
    return table


def _differences_table(runs: Sequence[Run], metrics: Sequence[str]) -> Table | None:
    """Differences on the same validation sequences: of a run from its start, and from the first run's end."""

    def shown(found: Estimate | None) -> str:
        return "" if found is None else with_error(*found, "+")

    differ = [(run, against(runs[0], run)) for run in runs]
    columns = ["run", "method", "paired difference", "last - first", f"last - last of {runs[0].name}"]
    table = Table("differences", "Paired differences", columns, [])
    for metric in metrics:
        for run, others in differ:
            if metric in run.change or metric in others:
                cells = [shown(run.change.get(metric)), shown(others.get(metric))]
                table.rows.append([run.name, run.method, facts(metric).title, *cells])
    return table if table.rows else None


def _notes(runs: Sequence[Run], reference: Run | None) -> list[str]:
    """What makes numbers of two runs incomparable."""
    notes = []
    for run in runs:
        if not run.metrics():
            notes.append(f"{run.name} has no validation metrics")
        elif (said := what_differs(run, reference)) is not None:
            notes.append(f"{run.name} {said}")
    without = [run.name for run in runs if run.finished and run.metrics() and not run.records]
    return notes + [f"no paired differences of {', '.join(without)}: not evaluated after training"] * bool(without)


def _numbers(run: Run, first: Run, metrics: Sequence[str]) -> Json:
    """What compare.json holds of a run."""
    found: Json = {"folder": str(run.folder), "method": run.method, "finished": run.finished, "metrics": {}}
    for metric in metrics:
        key = f"eval_{metric}"
        found["metrics"][metric] = [
            {"step": entry["step"], "value": entry[key], "standard_error": entry.get(f"{key}_se")}
            | {title: entry[column] for column, title in AXES.values() if entry.get(column) is not None}
            for entry in run.measured(key)
        ]
    for name, estimates in ("change", run.change), ("against_first", against(first, run)):
        found[name] = {m: {"difference": e.mean, "standard_error": e.standard_error} for m, e in estimates.items()}
    return found
