"""`ebft compare`: runs side by side, finished or not, by EBFT or a baseline: tables, and what makes them incomparable.

Only files in the runs' folders are read, so runs that are still training can be compared too.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ebft.errors import ConfigError
from ebft.method.measures import with_error
from ebft.runtime.files import Json, json_ready, write_json, write_text
from ebft.studies import figures
from ebft.studies.evidence import VALIDATION, Evidence, Model, Row, scores_of_run
from ebft.studies.report import Report, check_place, render
from ebft.studies.runs import AXES, Run, against, better, facts, read_run, validation_metrics
from ebft.studies.tables import Table, costs_table, differences_table, settings_table

FILES = PNG, HTML, NUMBERS = "compare.png", "compare.html", "compare.json"
REWARD = "reward"  # RLVR's own, from training; EBFT's on validation repeats the whitened proxy and is left out


def compare(folders: Sequence[str], output: str, axis: str = "steps", names: Sequence[str] = ()) -> Report:
    """The tables of some runs, and the picture, page and numbers in `output`."""
    if names and len(names) != len(folders):
        raise ConfigError(f"--name is given {len(names)} times for {len(folders)} runs; give one for each, or none")
    place = Path(output).expanduser()
    check_place(place, NUMBERS)
    runs = [read_run(Path(folder)) for folder in folders]
    short = names or [run.name for run in runs]
    for run, folder, name in zip(runs, folders, short, strict=True):
        run.name = folder if len(set(short)) < len(runs) else name  # equal names become paths
    metrics = validation_metrics(runs)
    evidence = Evidence(
        place, {}, [Row(run.name, run.method, [Model(run=run, scores=scores_of_run(run))]) for run in runs]
    )
    figure = figures.training_figure(evidence, axis)
    if not metrics or figure is None:
        raise ConfigError(f"these runs have not logged validation metrics over {axis} yet; wait, or use --x steps")
    state = {True: "finished", False: "not finished"}
    every = [
        _metrics_table(runs, metrics),
        differences_table(evidence, [f"{VALIDATION} {metric}" for metric in metrics]),
        costs_table([({"run": run.name, "method": run.method, "state": state[run.finished]}, run) for run in runs]),
        settings_table({run.name: run for run in runs}),
    ]
    found = [table for table in every if len(table.cells)]
    place.mkdir(parents=True, exist_ok=True)
    numbers = {run.name: _numbers(run, runs[0], metrics) for run in runs}
    write_json(place / NUMBERS, json_ready({"runs": numbers, "notes": evidence.notes}))
    (place / PNG).write_bytes(figures.saved(figure, "png"))
    page: Json = {"title": "Runs compared", "about": "Made by ebft compare.", "notes": evidence.notes, "tables": found}
    write_text(place / HTML, render(page, {f"Over {AXES[axis][1]}": figure}))
    return Report(found, [], evidence.notes, [place / name for name in FILES])


def _metrics_table(runs: Sequence[Run], metrics: Sequence[str]) -> Table:
    rows = []
    for metric, run in ((metric, run) for metric in [*metrics, REWARD] for run in runs):
        key = metric if metric == REWARD else f"eval_{metric}"
        if entries := run.rewards() if metric == REWARD else run.measured(key):
            last, best = entries[-1], better(metric)(entries, key=lambda entry: entry[key])
            shown = [with_error(entry[key], entry.get(f"{key}_se")) for entry in (entries[0], best, last)]
            left = last.get("model_step", last["step"])  # the best model may have been loaded after the last step
            row = {"run": run.name, "method": run.method, "metric": facts(metric).title}
            row |= {"first": shown[0], "best": shown[1], "best at": str(best["step"]), "last": shown[2]}
            change = with_error(*run.change[metric], "+") if metric in run.change else ""
            at = str(left) if left == last["step"] else f"{left}, kept"
            rows.append({**row, "last at": at, "paired change": change})
    return Table("validation", "Validation", rows)


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
