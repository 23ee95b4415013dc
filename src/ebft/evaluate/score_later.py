"""`ebft score FOLDER`: programs that `ebft eval --no-score` has generated elsewhere, scored where there is a sandbox.

The folder is an evaluation's or one with many of them, such as a study's. Their results.json is completed as if they
had been scored at once; no model is needed.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ebft.config.evaluation import EvalOptions
from ebft.errors import DataError
from ebft.evaluate import eval_command, tables
from ebft.runtime.files import read_json, write_json
from ebft.runtime.locks import Lock
from ebft.tasks.registry import problem_sets
from ebft.tasks.scoring import MEMORY_MIB, TIMEOUT

# What a folder has settings of its own for, or no use for.
_USUAL = dict.fromkeys(("samples", "output", "k", "language", "source_field", "target_field", "target_language"))
_USUAL |= {"bleu_tokenize": None, "comet_model": None, "comet_python": None, "timeout": TIMEOUT, "memory": MEMORY_MIB}


def score_folder(options: argparse.Namespace) -> list[tuple[str, ...]]:
    """Scores what is left to score; returns a table with a row for every metric of every evaluation in the folder."""
    folder = Path(options.task).expanduser()
    if given := [name for name, usual in _USUAL.items() if getattr(options, name) != usual]:
        raise DataError(f"--{given[0].replace('_', '-')} is not for a folder: its settings are those of its evaluation")
    places = [file.parent for file in sorted(folder.rglob(tables.RESULTS_FILE)) if "tasks" in (read_json(file) or {})]
    if not places:
        raise DataError(f"{folder} holds no results of `ebft eval`; score a file with `ebft score TASK --samples FILE`")
    if options.problems is not None and len(tasks := {task for place in places for task in _unscored(place)}) > 1:
        raise DataError(f"--problems is for one task, and {folder} has {', '.join(sorted(tasks))} to score")
    for place in places:
        with Lock(place / eval_command.LOCK_FILE):
            for task in _unscored(place):
                _score(place, task, options)
            eval_command.present({place.name: tables.read_results(place)}, {place.name: place}, place)
    rows: list[tuple[str, ...]] = [("evaluation", "task", "metric", "value")]
    for name, place in zip(tables.labels([str(place) for place in places]), places, strict=True):
        rows += [(name, *row) for row in tables.table({name: tables.read_results(place)}, {})[1:]]
    return rows


def _unscored(place: Path) -> list[str]:
    entries = tables.read_results(place)["tasks"]
    return [task for task, entry in entries.items() if not eval_command.is_scored(entry, EvalOptions())]


def _score(place: Path, task: str, options: argparse.Namespace) -> None:
    from ebft.tasks.run_task import score_sets  # brings in torch

    results = tables.read_results(place)
    entry = results["tasks"][task]
    asked: dict[str, Any] = {name: value for name, value in entry["settings"].items() if value is not None}
    asked["tasks"] = [task]
    if options.problems is not None:
        asked[task.replace("-", "_")] = options.problems
    asked |= {"workers": options.workers, "unsafe_exec": options.unsafe_exec}
    found = EvalOptions.from_values({name: value for name, value in asked.items() if value is not None})
    scored = score_sets(found, place, problem_sets(task, found))
    results["tasks"][task] = {**scored, "settings": entry["settings"], "mark": entry["mark"]}
    write_json(place / tables.RESULTS_FILE, results)
