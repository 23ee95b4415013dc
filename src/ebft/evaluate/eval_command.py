"""`ebft eval`: tasks on checkpoints, with results that can be resumed and compared."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ebft.config import evaluation
from ebft.config.evaluation import EvalOptions
from ebft.config.settings import Parser
from ebft.data import rows
from ebft.errors import ConfigError
from ebft.evaluate import differences, tables
from ebft.evaluate.tasks import ProblemSet, fingerprint, problem_sets
from ebft.method.measures import TEMPERATURES
from ebft.runtime.files import locked, write_json, write_text
from ebft.runtime.machine import describe
from ebft.runtime.messages import print_table, quiet_libraries

logger = logging.getLogger(__name__)

TABLE_FILE, LOCK_FILE = "results.md", "eval.lock"  # the lock: while a process writes here
# Which options a task's numbers depend on: its groups' and the seed and limit, but not how fast it is made.
_GROUPS = {"calibration": ("calibration",), "translation": ("generation", "translation")}
_SOURCES = {"humaneval": ("humaneval",), "mbpp": ("mbpp",), "multipl-e": ("multipl_e", "languages")}
_NOT_OF_NUMBERS = ("workers", "calibration_batch_size", "score")  # what is scored later has the same scores


def run(options: EvalOptions, command: Sequence[str]) -> tables.Rows:
    """Evaluate, or compare; returns the table."""
    for name in ("output",) if options.compare else ("output", "model", "tasks"):
        if not getattr(options, name):
            raise ConfigError(f"no {name}: give --{name}")
    output, labels = Path(options.output).expanduser(), tables.labels(options.compare or options.model)
    if options.compare:
        folders = dict(zip(labels, (Path(place).expanduser() for place in options.compare), strict=True))
        found = {label: tables.read_results(folder) for label, folder in folders.items()}
        with locked(output / LOCK_FILE):
            return present(found, folders, output)
    from ebft.evaluate.subject import CheckpointSubject

    quiet_libraries()
    # What can be wrong with models, data and settings shows before a model is loaded or a folder made.
    subjects = [CheckpointSubject(name, options) for name in options.model]
    sets: dict[str, list[ProblemSet]] = {task: problem_sets(task, options) for task in options.tasks}
    several = {label: output / re.sub(r"[^\w.-]+", "-", label).strip("-.") for label in labels}
    folders = several if len(labels) > 1 else {labels[0]: output}
    with ExitStack() as held:
        for place in sorted({output, *folders.values()}):
            held.enter_context(locked(place / LOCK_FILE))
        results = {}
        for (label, folder), subject in zip(folders.items(), subjects, strict=True):
            logger.info(f"{label} -> {folder}")
            results[label] = _evaluate(options, sets, subject, folder, command)
            subject.unload()  # room for the next one
        return present(results, folders, output)


def _evaluate(
    options: EvalOptions, sets: Mapping[str, Sequence[ProblemSet]], subject: Any, folder: Path, command: Sequence[str]
) -> tables.Results:
    """All tasks on one model. Written after every task, so that a stopped run keeps what it has."""
    from ebft.evaluate.run_task import run_task, with_prompt_style

    if any(task != "calibration" for task in options.tasks):
        options = with_prompt_style(options, subject)
    file = folder / tables.RESULTS_FILE
    finished = {} if options.overwrite or not file.exists() else tables.read_results(folder)["tasks"]
    about = {"seed": options.seed, "versions": describe(), "command": list(command)}
    results = {**subject.describe(), **about, "tasks": dict(finished)}
    for task in options.tasks:
        mark = _mark(task, options, subject, sets[task])
        if finished.get(task, {}).get("mark") == mark and (tables.is_scored(finished[task]) or not options.score):
            logger.info(f"{task}: already in {file}")
            continue
        found = run_task(task, options, subject, folder, sets[task])
        record(folder, results, task, {**found, "settings": task_settings(task, options), "mark": mark})
    return results


def record(folder: Path, results: tables.Results, task: str, entry: Mapping[str, Any]) -> None:
    for note in entry["notes"]:
        logger.warning(f"{task}: {note}")
    results["tasks"][task] = entry
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / tables.RESULTS_FILE, results)


def task_settings(task: str, options: EvalOptions) -> dict[str, Any]:
    left_out = {*_NOT_OF_NUMBERS, *(name for other, names in _SOURCES.items() if other != task for name in names)}
    left_out |= {"prompt_style"} if options.prompt_style == "auto" else set()  # not decided yet
    found = options.values(*_GROUPS.get(task, ("generation", "code")))
    found = {name: value for name, value in found.items() if name not in left_out}
    return {"seed": options.seed, "limit": options.limit, **found}


def _mark(task: str, options: EvalOptions, subject: Any, sets: Sequence[ProblemSet]) -> str:
    """The same for the same numbers: model, data and settings."""
    inputs: list[Any] = [[p.keys, p.asked[options.prompt_style], p.skipped] for p in sets]
    if task == "calibration":
        data = rows.contents(options.calibration_data or "", options.calibration_split)
        inputs = [subject.feature_source, data, TEMPERATURES]
    return fingerprint([task, subject.identity, inputs, task_settings(task, options)])


def present(results: dict[str, tables.Results], folders: dict[str, Path], output: Path) -> tables.Rows:
    """Writes the tables and pictures; returns the table."""
    tables.check_same_space(results)
    moved = differences.against_first(results, folders)
    output.mkdir(parents=True, exist_ok=True)
    write_text(output / TABLE_FILE, tables.markdown(results, moved))
    if any("calibration" in found["tasks"] for found in results.values()):
        tables.draw(results, output)
    return tables.table(results, moved)


def command(arguments: list[str]) -> int:
    usage = "--model M --tasks calibration,humaneval,... --output DIR [options]"
    parser = Parser("eval", "Evaluate checkpoints. The same command resumes where it stopped.", usage)
    for group, (_, title) in evaluation.GROUPS.items():
        parser.add_settings(title, [(name, f) for name, f, _ in evaluation.options(group)])
    options = EvalOptions.from_values(parser.parse_args(arguments).settings)
    print_table(run(options, ["ebft", "eval", *arguments]))
    print(f"\n{options.output}/{TABLE_FILE}")
    return 0
