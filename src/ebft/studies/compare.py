"""`ebft compare`: runs side by side, finished or not, by EBFT or a baseline: a table, and what makes them incomparable.

The curves and the HTML page are in compare_page.py. Only files in the runs' folders are read, so runs that are still
training can be compared too.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ebft.errors import ConfigError
from ebft.runtime.files import json_ready, write_json, write_text
from ebft.studies import paired
from ebft.studies.compare_page import AXES, draw, has_axis, html_page
from ebft.studies.run_reader import COSTS, METRICS_FILE, Measurement, Run, read_run
from ebft.studies.same_measurement import what_differs
from ebft.train.metric_names import NAMES, with_error

PNG, HTML, TABLE = "compare.png", "compare.html", "compare.json"
FOLDER = "compare"  # the default output folder


@dataclass
class Comparison:
    table: list[tuple[str, ...]]
    notes: list[str] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="output folders of ebft train, sft or rlvr")
    parser.add_argument("--output", default=FOLDER, help=f"folder for {PNG}, {HTML} and {TABLE} [{FOLDER}]")
    parser.add_argument("--x", default="steps", help=f"horizontal axis of the PNG: {', '.join(AXES)} [steps]")
    parser.add_argument("--name", action="append", default=[], help="what to call a run, one for each, in order")


def compare(
    runs: Sequence[str], output: str | None = None, axis: str = "steps", names: Sequence[str] = ()
) -> Comparison:
    """The table of some runs; with `output`, also writes the picture, the page and the numbers there."""
    if axis not in AXES:
        raise ConfigError(f"--x {axis} is not one of {', '.join(AXES)}")
    if names and len(names) != len(runs):
        raise ConfigError(f"--name is given {len(names)} times for {len(runs)} runs; give one for each, or none")
    folder = None if output is None else _output_folder(output)
    found = _with_names([read_run(Path(run)) for run in runs], names)
    present = {metric for run in found for metric in run.metrics()}
    if not present:
        raise ConfigError("no validation metrics in these runs yet; wait for the first evaluation")
    metrics = [*(m for m in NAMES if m in present), *sorted(present - set(NAMES))]
    comparison = Comparison(
        _stacked(_metrics_table(found, metrics), paired.differences_table(found, metrics), _costs_table(found)),
        [*_notes(found), *paired.without_records(found)],
    )
    if folder is not None:
        comparison.files = _write(folder, found, metrics, comparison, axis)
    return comparison


def _output_folder(output: str) -> Path:
    folder = Path(output).expanduser()
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--output {folder} is a file; give a folder")
    if (folder / METRICS_FILE).exists():
        raise ConfigError(f"--output {folder} is the folder of a run; choose another")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / TABLE).exists():
        raise ConfigError(f"--output {folder} is not empty and holds no comparison; choose another folder")
    return folder


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
    """The earliest of the best. Losses are better when smaller; rates, rewards and scores of tasks when larger."""
    smaller = any(word in metric for word in ("cross_entropy", "cfm", "loss"))
    return (min if smaller else max)(measurements, key=lambda one: one.value)


def _metrics_table(runs: list[Run], metrics: list[str]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("run", "method", "metric", "first", "best", "at step", "last", "at step")]
    for metric in metrics:
        for run in runs:
            if values := run.measurements(metric):
                first, top, last = values[0], best(values, metric), values[-1]
                shown = (with_error(first.value, first.error), with_error(top.value, top.error), str(top.step))
                title = NAMES.get(metric, metric)
                rows.append((run.name, run.method, title, *shown, with_error(last.value, last.error), str(last.step)))
    return rows


def _costs_table(runs: list[Run]) -> list[tuple[str, ...]]:
    formats = {
        "spent/tokens": ",.0f",
        "spent/generated_tokens": ",.0f",
        "spent/seconds": ",.1f",
        "spent/flops": ".3g",
    }
    rows: list[tuple[str, ...]] = [("run", "method", "state", "steps", "tokens", "generated", "seconds", "FLOPs")]
    for run in runs:
        costs = run.total_costs()
        cells = [format(costs[key], style) if costs.get(key) is not None else "" for key, style in formats.items()]
        state = "finished" if run.finished else "not finished"
        rows.append((run.name, run.method, state, f"{costs.get('step', 0):,}", *cells))
    return rows


def _stacked(*tables: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Tables under each other, with an empty row between two and as many cells in all rows."""
    width = max(len(row) for table in tables for row in table)
    rows = [row for table in tables if table for row in [(), *table]][1:]
    return [row + ("",) * (width - len(row)) for row in rows]


def _notes(runs: list[Run]) -> list[str]:
    """What makes numbers of two runs incomparable."""
    notes = []
    first = next((run for run in runs if run.validation is not None), None)
    for run in runs:
        if not run.metrics():
            notes.append(f"{run.name} has no validation metrics, so it appears only in the second table")
        elif run.validation is None:
            notes.append(f"{run.name} does not say how it was measured; its numbers may not compare")
        elif first is not None and first.validation is not None:
            notes += what_differs(run.name, run.validation, first.name, first.validation)
    return notes


def _write(folder: Path, runs: list[Run], metrics: list[str], comparison: Comparison, axis: str) -> list[Path]:
    if not has_axis(runs, metrics, axis):
        raise ConfigError(f"--x {axis}: these runs were made before ebft logged it; use --x steps")
    pictures = {name: draw(runs, metrics, name) for name in AXES if has_axis(runs, metrics, name)}
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / TABLE, folder / PNG, folder / HTML]
    numbers = {run.name: _numbers(run, runs[0], metrics) for run in runs}
    write_json(files[0], json_ready({"runs": numbers, "notes": comparison.notes}))
    files[1].write_bytes(pictures[axis])
    write_text(files[2], html_page(comparison.table, comparison.notes, pictures, axis))
    return files


def _numbers(run: Run, first: Run, metrics: list[str]) -> dict[str, Any]:
    """What compare.json holds of a run."""
    values = {
        metric: [
            {"step": m.step, "value": m.value, "standard_error": m.error, **{COSTS[k]: v for k, v in m.costs.items()}}
            for m in run.measurements(metric)
        ]
        for metric in metrics
    }
    found = {"folder": str(run.folder), "method": run.method, "finished": run.finished, "metrics": values}
    for name, estimates in ("change", paired.change(run)), ("against_first", paired.against(first, run)):
        found[name] = {
            metric: {"difference": e.mean, "standard_error": e.standard_error} for metric, e in estimates.items()
        }
    return found
