"""`ebft compare`: runs side by side, finished or not, by EBFT or a baseline: a table, and what makes them incomparable.

Only files in the runs' folders are read, so runs that are still training can be compared too.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ebft.errors import ConfigError
from ebft.method.measures import NAMES, Estimate, with_error
from ebft.runtime.files import json_ready, read_json, write_json, write_text
from ebft.studies import figures
from ebft.studies.evidence import validated_apart
from ebft.studies.report import as_data, colors_of, render
from ebft.studies.runs import AXES, Run, against, better, facts, read_run, what_differs
from ebft.studies.tables import Cell, Table, settings_tables

PNG, HTML, TABLE = "compare.png", "compare.html", "compare.json"
FOLDER = "compare"  # the default output folder
REWARD = "reward"  # RLVR's own, from training; EBFT's on validation repeats the whitened proxy and is left out
Rows = list[tuple[str, ...]]


class OutputTaken(ConfigError):
    """The output folder holds something that a comparison would destroy."""


@dataclass
class Comparison:
    table: Rows
    notes: list[str] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="output folders of ebft train, sft or rlvr")
    parser.add_argument("--output", default=None, help=f"folder for {PNG}, {HTML} and {TABLE} [{FOLDER}]")
    parser.add_argument("--x", default="steps", choices=AXES, help="horizontal axis of the figures [steps]")
    parser.add_argument("--name", action="append", default=[], help="what to call a run, one for each, in order")


def compare(
    runs: Sequence[str],
    output: str | None = None,
    axis: str = "steps",
    names: Sequence[str] = (),
    replace: bool = False,
) -> Comparison:
    """The table of some runs; with `output`, also writes the picture, the page and the numbers there.

    replace: also over a comparison with runs that are not among these.
    """
    if names and len(names) != len(runs):
        raise ConfigError(f"--name is given {len(names)} times for {len(runs)} runs; give one for each, or none")
    folder = None if output is None else Path(output).expanduser()
    found = _named([read_run(Path(run)) for run in runs], names)
    if folder is not None:
        _check_folder(folder, [] if replace else found)
    present = {metric for run in found for metric in run.metrics()} - {REWARD}
    if not present:
        raise ConfigError(
            "no validation metrics in these runs yet; wait for the first evaluation (in Python: give the trainer an "
            "eval_dataset and call `trainer.evaluate()`)"
        )
    metrics = [*(m for m in NAMES if m in present), *sorted(present - set(NAMES))]
    parts = {
        "Validation": _metrics_table(found, metrics),
        "Paired differences": _differences_table(found, metrics),
        "Costs": _costs_table(found),
    }
    width = max(len(row) for rows in parts.values() for row in rows)
    stacked = [row + ("",) * (width - len(row)) for rows in parts.values() if rows for row in [(), *rows]]
    comparison = Comparison(stacked[1:], _notes(found))
    if folder is not None:
        comparison.files = _write(folder, found, metrics, parts, comparison.notes, axis)
    return comparison


def _check_folder(folder: Path, runs: list[Run]) -> None:
    """Made again, or with more runs, a comparison takes its own place; that of other runs is not lost to it."""
    if folder.exists() and not folder.is_dir():
        raise OutputTaken(f"--output {folder} is a file; give a folder")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / TABLE).exists():
        raise OutputTaken(f"--output {folder} is not empty and holds no comparison; choose another folder")
    held = (read_json(folder / TABLE) or {}).get("runs", {})
    ours = {run.folder.resolve() for run in runs}
    if others := [name for name, of_run in held.items() if runs and Path(of_run["folder"]).resolve() not in ours]:
        raise OutputTaken(f"--output {folder} holds a comparison with other runs ({', '.join(others)}); choose another")


def _named(runs: list[Run], names: Sequence[str]) -> list[Run]:
    """Runs have the names of their folders, or where these are equal their paths."""
    for run, name in zip(runs, names, strict=False):
        run.name = name
    if len({run.name for run in runs}) < len(runs):
        for run in runs:
            run.name = str(run.folder)
    if len({run.name for run in runs}) < len(runs):
        raise ConfigError("a run is given twice; give each once, or names of their own with --name")
    return runs


def _metrics_table(runs: list[Run], metrics: list[str]) -> Rows:
    rows: Rows = [("run", "method", "metric", "first", "best", "at step", "last", "at step")]
    for metric, run in ((metric, run) for metric in [*metrics, REWARD] for run in runs):
        if values := run.rewards() if metric == REWARD else run.measurements(f"eval_{metric}"):
            last = values[-1]
            top = better(metric)(values, key=lambda one: one.value)  # the earliest of the best
            first, best, final = (with_error(one.value, one.error) for one in (values[0], top, last))
            left = str(last.step) if last.model_step == last.step else f"{last.model_step}, kept"
            rows.append((run.name, run.method, facts(metric).title, first, best, str(top.step), final, left))
    return rows


def _differences_table(runs: Sequence[Run], metrics: Sequence[str]) -> Rows:
    """Differences on the same validation sequences: of a run from its start, and from the first run's end."""

    def shown(found: Estimate | None) -> str:
        return "" if found is None else with_error(*found, "+")

    differ = [(run, against(runs[0], run)) for run in runs]
    rows = [
        (run.name, run.method, facts(metric).title, shown(run.change.get(metric)), shown(others.get(metric)))
        for metric in metrics
        for run, others in differ
        if metric in run.change or metric in others
    ]
    titles = ("run", "method", "paired difference", "last - first", f"last - last of {runs[0].name}")
    wide = len(titles) if any(others for _, others in differ) else len(titles) - 1
    return [row[:wide] for row in (titles, *rows)] if rows else []


def _costs_table(runs: list[Run]) -> Rows:
    formats = {"tokens": ",.0f", "generated_tokens": ",.0f", "seconds": ",.1f", "flops": ".3g"}
    rows: Rows = [("run", "method", "state", "steps", "tokens", "generated", "seconds", "FLOPs")]
    for run in runs:
        costs = run.total_costs()
        known = [(costs.get(f"spent/{name}"), style) for name, style in formats.items()]
        cells = ["" if value is None else format(value, style) for value, style in known]
        state = "finished" if run.finished else "not finished"
        rows.append((run.name, run.method, state, f"{costs.get('step', 0):,}", *cells))
    return rows


def _notes(runs: list[Run]) -> list[str]:
    """What makes numbers of two runs incomparable."""
    notes = []
    first = next((run for run in runs if run.validation is not None), None)
    for run in runs:
        notes += [f"{run.name}: {problem}" for problem in run.problems]
        if not run.metrics():
            notes.append(f"{run.name} has no validation metrics, so it appears only in the second table")
        elif first is not None:
            notes += what_differs(run.name, run.validation, first.name, first.validation)
    without = [run.name for run in runs if run.finished and run.metrics() and not run.records and not run.problems]
    why = "not evaluated after training (in Python: `trainer.evaluate()` at the end)"
    return notes + [f"no paired differences of {', '.join(without)}: {why}"] * bool(without)


def _write(
    folder: Path, runs: list[Run], metrics: list[str], parts: dict[str, Rows], notes: list[str], axis: str
) -> list[Path]:
    # Against the first run that says how it was measured.
    first = next((run for run in runs if run.validation is not None), None)
    colors = colors_of(run.name for run in runs)
    panels = figures.metric_curves([(run.name, [run], validated_apart(run, first)) for run in runs], axis)
    if not panels:
        raise ConfigError(f"--x {axis}: these runs have not logged it; use --x steps")
    folder.mkdir(parents=True, exist_ok=True)
    place = {name: folder / name for name in (TABLE, PNG, HTML)}
    numbers = {run.name: _numbers(run, runs[0], metrics) for run in runs}
    write_json(place[TABLE], json_ready({"runs": numbers, "notes": notes}))
    place[PNG].write_bytes(figures.saved(figures.curves_figure(panels, axis, colors), "png")[0])
    drawn = [(panel[0], figures.saved(figures.curves_figure([panel], axis, colors), "svg")[0]) for panel in panels]
    pictures = [(title, as_data(svg)) for title, svg in drawn]
    shown = []
    for title, rows in ((title, rows) for title, rows in parts.items() if rows):
        cells: list[list[Cell]] = [list(row) for row in rows[1:]]
        shown.append(Table(title.split()[-1].lower(), title, list(rows[0]), cells))
    shown += settings_tables({run.name: run for run in runs})[:1]
    page = {"title": "Runs compared", "about": "Made by ebft compare.", "notes": notes, "tables": shown}
    write_text(place[HTML], render({**page, "figures": {f"Over {AXES[axis][1]}": pictures}}))
    return list(place.values())


def _numbers(run: Run, first: Run, metrics: list[str]) -> dict[str, Any]:
    """What compare.json holds of a run."""
    values = {
        metric: [
            {"step": m.step, "value": m.value, "standard_error": m.error, **{AXES[k][1]: v for k, v in m.costs.items()}}
            for m in run.measurements(f"eval_{metric}")
        ]
        for metric in metrics
    }
    found = {"folder": str(run.folder), "method": run.method, "finished": run.finished, "metrics": values}
    for name, estimates in ("change", run.change), ("against_first", against(first, run)):
        found[name] = {m: {"difference": e.mean, "standard_error": e.standard_error} for m, e in estimates.items()}
    return found
