"""`ebft score FOLDER`: programs that `ebft eval --no-score` has generated elsewhere, scored where there is a sandbox.

The folder is an evaluation's or one with many of them, such as a study's. Their results are completed as if they had
been scored at once; no model is needed.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ebft.config.evaluation import EvalOptions
from ebft.errors import ConfigError, DataError
from ebft.evaluate import eval_command, score_command, tables
from ebft.problems.catalog import BENCHMARKS
from ebft.runtime.files import locked, read_json, write_json
from ebft.tasks.registry import problem_sets

logger = logging.getLogger(__name__)

_OF_A_FOLDER = ("task", "problems", "workers", "unsafe_exec")  # for the other options it has settings of its own


class ScoredFolder(NamedTuple):
    table: list[tuple[str, ...]]  # a row for every metric of every evaluation
    errors: list[str]  # of evaluations that could not be scored


def score_folder(options: argparse.Namespace) -> ScoredFolder:
    """Scores what is left to score in all evaluations of the folder; one that cannot be scored stops no other."""
    folder = Path(options.task).expanduser()
    _check_options(options)
    found = {file.parent: read_json(file) or {} for file in sorted(folder.rglob(tables.RESULTS_FILE))}
    entries = {place: results["tasks"] for place, results in found.items() if "tasks" in results}
    places = list(entries)
    begun = _half_generated(folder, entries)
    if begun and not places:
        raise DataError(begun[0])
    for note in begun:
        logger.warning(note)
    if not places:
        raise DataError(f"{folder} holds no results of `ebft eval`; score a file with `ebft score TASK --samples FILE`")
    left = {
        place: [task for task, one in tasks.items() if not tables.is_scored(one)] for place, tasks in entries.items()
    }
    problems = _problems(options.problems, {task for tasks in left.values() for task in tasks})
    errors = []
    for place in (place for place, tasks in left.items() if tasks):
        with locked(place / eval_command.LOCK_FILE):
            for task in left[place]:
                logger.info(f"{place}: {task}")
                try:
                    _score(place, task, problems.get(task), options)
                except DataError as error:
                    errors.append(f"{place}, {task}: {error}")
            _present(place, [place])
    if not any(left.values()):
        logger.info("nothing to score: all of it is scored already")
    elif len(places) > 1 and all(place.parent == folder for place in places):  # of several models, compared
        _present(folder, places)
    rows: list[tuple[str, ...]] = [("evaluation", "task", "metric", "value")]
    for name, place in zip(tables.labels([str(place) for place in places]), places, strict=True):
        rows += [(name, *row) for row in tables.table({name: tables.read_results(place)}, {})[1:]]
    return ScoredFolder(rows, errors)


def _check_options(options: argparse.Namespace) -> None:
    parser = argparse.ArgumentParser()
    score_command.add_arguments(parser)
    for name, value in vars(options).items():
        if name not in _OF_A_FOLDER and value != parser.get_default(name):
            raise DataError(f"--{name.replace('_', '-')} is not for a folder: its settings are those of its evaluation")


def _half_generated(folder: Path, entries: Mapping[Path, Mapping[str, Any]]) -> list[str]:
    """What `ebft eval` has begun and not finished: it has no results yet."""
    notes = []
    for file in sorted(folder.rglob("*.settings.json")):
        name, decoding = (file.name.removesuffix(".settings.json").rpartition(".")[part] for part in (0, 2))
        finished = entries.get(file.parent, {})
        if decoding in ("greedy", "samples") and not any(name.startswith(task) for task in finished):
            notes.append(f"{file.parent}: {name} is not all generated; run the same `ebft eval` again first")
    return list(dict.fromkeys(notes))


def _problems(given: str | None, tasks: set[str]) -> dict[str, str]:
    """By task, where its problems are now: `FILE`, or `humaneval=FILE,mbpp=FILE`."""
    if given is None:
        return {}
    if given.partition("=")[0] in BENCHMARKS:
        return dict(pair.split("=", 1) for pair in given.split(",") if "=" in pair)
    if len(tasks) > 1:
        named = ",".join(f"{task}=FILE" for task in sorted(tasks))
        raise DataError(f"--problems {given} is for one task, and there are several to score: use --problems {named}")
    return dict.fromkeys(tasks, given)


def _score(place: Path, task: str, problems: str | None, options: argparse.Namespace) -> None:
    from ebft.tasks.run_task import score_sets  # brings in torch

    results = tables.read_results(place)
    entry = results["tasks"][task]
    asked: dict[str, Any] = {**entry["settings"], "tasks": [task], "workers": options.workers}
    asked |= {"unsafe_exec": options.unsafe_exec}
    if problems is not None:
        asked[task.replace("-", "_")] = problems
    found = EvalOptions.from_values({name: value for name, value in asked.items() if value is not None})
    try:
        sets = problem_sets(task, found)
    except DataError as error:
        raise DataError(f"{error}; say where its problems are: --problems {task}=FILE") from None
    except ConfigError as error:  # no sandbox
        raise DataError(str(error)) from None
    scored = score_sets(found, place, sets)
    for note in scored.get("notes", ()):
        logger.warning(f"{task}: {note}")
    results["tasks"][task] = {**scored, "settings": entry["settings"], "mark": entry["mark"]}
    write_json(place / tables.RESULTS_FILE, results)


def _present(folder: Path, places: list[Path]) -> None:
    """The tables of `ebft eval`, of one model or of several in the order in which they were given."""

    def order(results: Mapping[str, Any]) -> int:
        command = results.get("command", [])
        return command.index(results["model"]) if results["model"] in command else 0

    evaluated = sorted(((tables.read_results(place), place) for place in places), key=lambda one: order(one[0]))
    names = tables.labels([results["model"] for results, _ in evaluated])
    results = {name: found for name, (found, _) in zip(names, evaluated, strict=True)}
    eval_command.present(results, {name: place for name, (_, place) in zip(names, evaluated, strict=True)}, folder)
