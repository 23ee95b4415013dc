"""`ebft compare`: runs side by side, finished or not, by EBFT or a baseline: a table, and what makes them incomparable.

A small report, made by the code of `ebft study report`. Only files in the runs' folders are read, so runs that are
still training can be compared too.
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
from ebft.studies.metric_facts import better, facts
from ebft.studies.report import pictures
from ebft.studies.report.curves import Curve, metric_title, training_curves, training_metrics
from ebft.studies.report.evidence import validated_apart
from ebft.studies.report.page import Page
from ebft.studies.report.settings_table import settings_of, settings_table
from ebft.studies.report.tables import Column, Table, cell
from ebft.studies.runs import AXES, METRICS_FILE, Measurement, Run, against, read_run, what_differs

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
    parser.add_argument("--x", default="steps", help=f"horizontal axis of the PNG: {', '.join(AXES)} [steps]")
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
    if axis not in AXES:
        raise ConfigError(f"--x {axis} is not one of {', '.join(AXES)}")
    if names and len(names) != len(runs):
        raise ConfigError(f"--name is given {len(names)} times for {len(runs)} runs; give one for each, or none")
    folder = None if output is None else _output_folder(output)
    found = _with_names([read_run(Path(run)) for run in runs], names)
    if folder is not None and not replace:
        _check_same_comparison(folder, found)
    present = {metric for run in found for metric in run.metrics()} - {REWARD}
    if not present:
        raise ConfigError(
            "no validation metrics in these runs yet; wait for the first evaluation (in Python: give the trainer an "
            "eval_dataset and call `trainer.evaluate()`)"
        )
    metrics = [*(m for m in NAMES if m in present), *sorted(present - set(NAMES))]
    tables = {
        "metrics": _metrics_table(found, metrics),
        "differences": _differences_table(found, metrics),
        "costs": _costs_table(found),
    }
    comparison = Comparison(_stacked(*tables.values()), [*_notes(found), *_without_records(found)])
    if folder is not None:
        comparison.files = _write(folder, found, metrics, tables, comparison.notes, axis)
    return comparison


def _output_folder(output: str) -> Path:
    folder = Path(output).expanduser()
    if folder.exists() and not folder.is_dir():
        raise OutputTaken(f"--output {folder} is a file; give a folder")
    if (folder / METRICS_FILE).exists():
        raise OutputTaken(f"--output {folder} is the folder of a run; choose another")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / TABLE).exists():
        raise OutputTaken(f"--output {folder} is not empty and holds no comparison; choose another folder")
    return folder


def _check_same_comparison(folder: Path, runs: list[Run]) -> None:
    """Made again, or with more runs, a comparison takes its own place; that of other runs is not lost to it."""
    held = (read_json(folder / TABLE) or {}).get("runs", {})
    ours = {run.folder.resolve() for run in runs}
    others = [name for name, of_run in held.items() if Path(of_run["folder"]).resolve() not in ours]
    if others:
        raise OutputTaken(
            f"--output {folder} holds a comparison with other runs ({', '.join(others)}); choose another folder, or "
            "delete this one"
        )


def _with_names(runs: list[Run], names: Sequence[str]) -> list[Run]:
    """Runs have the names of their folders, or where these are equal their paths."""
    for run, name in zip(runs, names, strict=False):
        run.name = name
    if len({run.name for run in runs}) < len(runs):
        for run in runs:
            run.name = str(run.folder)
    if len({run.name for run in runs}) < len(runs):
        raise ConfigError("a run is given twice; give each once, or names of their own with --name")
    return runs


def best(measurements: Sequence[Measurement], metric: str) -> Measurement:
    """The earliest of the best."""
    return better(metric)(measurements, key=lambda one: one.value)


def _metrics_table(runs: list[Run], metrics: list[str]) -> Rows:
    rows: Rows = [("run", "method", "metric", "first", "best", "at step", "last", "at step")]
    for metric in [*metrics, REWARD]:
        for run in runs:
            values = run.rewards() if metric == REWARD else run.measurements(f"eval_{metric}")
            if values:
                first, top, last = values[0], best(values, metric), values[-1]
                shown = (with_error(first.value, first.error), with_error(top.value, top.error), str(top.step))
                title = facts(metric).title
                left = str(last.step) if last.model_step == last.step else f"{last.model_step}, kept"
                rows.append((run.name, run.method, title, *shown, with_error(last.value, last.error), left))
    return rows


def _differences_table(runs: Sequence[Run], metrics: Sequence[str]) -> Rows:
    """Differences on the same validation sequences: of a run from its start, and from the first run's end."""
    first = runs[0]
    differ = {run.name: against(first, run) for run in runs}
    rows = [
        (
            run.name,
            run.method,
            NAMES.get(metric, metric),
            *(_shown(one.get(metric)) for one in (run.change, others)),
        )
        for metric in metrics
        for run, others in zip(runs, differ.values(), strict=True)
        if metric in run.change or metric in others
    ]
    titles = ("run", "method", "paired difference", "last - first", f"last - last of {first.name}")
    shown = len(titles) if any(differ.values()) else len(titles) - 1
    return [row[:shown] for row in (titles, *rows)] if rows else []


def _shown(found: Estimate | None) -> str:
    return "" if found is None else with_error(*found, "+")


def _without_records(runs: Sequence[Run]) -> list[str]:
    """A note on finished runs that have no differences."""
    found = [run.name for run in runs if run.finished and run.metrics() and not run.records and not run.problems]
    why = "not evaluated after training (in Python: `trainer.evaluate()` at the end)"
    return [f"no paired differences of {', '.join(found)}: {why}"] if found else []


def _costs_table(runs: list[Run]) -> Rows:
    formats = {
        "spent/tokens": ",.0f",
        "spent/generated_tokens": ",.0f",
        "spent/seconds": ",.1f",
        "spent/flops": ".3g",
    }
    rows: Rows = [("run", "method", "state", "steps", "tokens", "generated", "seconds", "FLOPs")]
    for run in runs:
        costs = run.total_costs()
        cells = [format(costs[key], style) if costs.get(key) is not None else "" for key, style in formats.items()]
        state = "finished" if run.finished else "not finished"
        rows.append((run.name, run.method, state, f"{costs.get('step', 0):,}", *cells))
    return rows


def _stacked(*tables: Rows) -> Rows:
    """Tables under each other, with an empty row between two and as many cells in all rows."""
    width = max(len(row) for table in tables for row in table)
    rows = [row for table in tables if table for row in [(), *table]][1:]
    return [row + ("",) * (width - len(row)) for row in rows]


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
    return notes


def _write(
    folder: Path, runs: list[Run], metrics: list[str], tables: dict[str, Rows], notes: list[str], axis: str
) -> list[Path]:
    # Against the first run that says how it was measured.
    first = next((run for run in runs if run.validation is not None), None)
    named = [(run.name, [run], validated_apart(run, first)) for run in runs]
    keys = training_metrics(runs)
    panels = [(facts(metric).title, training_curves(named, f"eval_{metric}")) for metric in metrics]
    if any(run.rewards() for run in runs):
        rlvr = [row for row in named if row[1][0].method == "rlvr"]
        panels.append((metric_title(REWARD), training_curves(rlvr, REWARD)))
    if not any(axis in curve.x for _, curves in panels for curve in curves):
        raise ConfigError(f"--x {axis}: these runs were made before ebft logged it; use --x steps")
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / TABLE, folder / PNG, folder / HTML]
    numbers = {run.name: _numbers(run, runs[0], metrics) for run in runs}
    write_json(files[0], json_ready({"runs": numbers, "notes": notes}))
    names = [run.name for run in runs]
    files[1].write_bytes(pictures.both(pictures.curves_figure(panels, axis, names))["png"])
    training: list[tuple[str, list[Curve]]] = [
        (metric_title(key), training_curves(named, key))
        for key in keys
        if not key.startswith("eval_") and key != REWARD
    ]
    titles = {"metrics": "Validation", "differences": "Paired differences", "costs": "Costs"}
    shown = [_as_table(name, titles[name], rows) for name, rows in tables.items() if rows]
    if (settings := settings_table(*settings_of({run.name: run for run in runs}))) is not None:
        shown.append(settings)
    page = Page(
        "Runs compared",
        "Made by ebft compare.",
        names,
        axis,
        notes=notes,
        tables=shown,
        curves=panels,
        training=training,
    )
    write_text(files[2], page.html())
    return files


def _as_table(name: str, title: str, rows: Rows) -> Table:
    meanings = {facts(metric).title: facts(metric).meaning for metric in (*NAMES, REWARD)}
    cells = [[cell(text, meaning=meanings.get(text, "")) for text in row] for row in rows[1:]]
    return Table(name, title, [Column(text, text=True) for text in rows[0]], cells)


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
        found[name] = {
            metric: {"difference": e.mean, "standard_error": e.standard_error} for metric, e in estimates.items()
        }
    return found
