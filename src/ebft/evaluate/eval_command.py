"""`ebft eval`: tasks on checkpoints, with results that can be resumed and compared."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ebft import fetch
from ebft.config import evaluation
from ebft.config.evaluation import EvalOptions
from ebft.config.settings import Parser
from ebft.data import rows
from ebft.errors import ConfigError
from ebft.evaluate import differences, tables
from ebft.evaluate.tasks import ProblemSet, fingerprint, problem_sets
from ebft.evaluate.temperatures import TEMPERATURES
from ebft.runtime.files import locked, write_json, write_text
from ebft.runtime.machine import describe
from ebft.runtime.messages import print_table

logger = logging.getLogger(__name__)

PLOT_FILE, TEMPERATURES_FILE, TABLE_FILE = "profile.png", "temperatures.png", "results.md"
LOCK_FILE = "eval.lock"  # while a process writes here
# Which options a task's numbers depend on: its groups' and the seed and limit, but not how fast it is made.
_GROUPS = {"calibration": ("calibration",), "translation": ("generation", "translation")}
_CODE_GROUPS = ("generation", "code")
_SOURCES = {"humaneval": ("humaneval",), "mbpp": ("mbpp",), "multipl-e": ("multipl_e", "languages")}
_NOT_OF_NUMBERS = ("workers", "calibration_batch_size", "score")  # what is scored later has the same scores


def run(options: EvalOptions, command: Sequence[str]) -> tables.Rows:
    """Evaluate, or compare; returns the table."""
    if not options.output:
        raise ConfigError("no output folder: give --output")
    output = Path(options.output).expanduser()
    if output.is_file():
        raise ConfigError(f"output={output} is a file; choose a folder")
    if options.compare:
        if options.model or options.tasks:
            raise ConfigError(
                "--compare takes folders with results and evaluates nothing; leave --model and --tasks out"
            )
        names = tables.labels(options.compare)
        found = {name: tables.read_results(place) for name, place in zip(names, options.compare, strict=True)}
        folders = {name: Path(place).expanduser() for name, place in zip(names, options.compare, strict=True)}
        tables.check_same_space(found)
        with locked(output / LOCK_FILE):
            return present(found, folders, output)
    if not options.model:
        raise ConfigError("no model: give --model, a checkpoint folder, a hub name or an adapter folder")
    for name in options.model:  # before anything is looked for on the hub
        fetch.resolve(name)
    if not options.tasks:
        raise ConfigError("no task: give --tasks, such as --tasks calibration,humaneval")
    # What can be wrong with data and settings shows before a model is loaded or a folder made.
    sets = {task: problem_sets(task, options) for task in options.tasks}
    labels = tables.labels(options.model)
    folders = {label: output / re.sub(r"[^\w.-]+", "-", label).strip("-.") for label in labels}
    if len(labels) == 1:
        folders = {labels[0]: output}
    with ExitStack() as held:
        for place in sorted({output, *folders.values()}):
            held.enter_context(locked(place / LOCK_FILE))
        return present(_evaluate_models(options, sets, folders, command), folders, output)


def _evaluate_models(
    options: EvalOptions, sets: dict[str, list[ProblemSet]], folders: dict[str, Path], command: Sequence[str]
) -> dict[str, tables.Results]:
    from transformers.utils import logging as transformers_logging

    from ebft.evaluate.subject import CheckpointSubject

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    subjects = [CheckpointSubject(name, options) for name in options.model]
    results = {}
    for (label, folder), subject in zip(folders.items(), subjects, strict=True):
        if len(subjects) > 1:
            logger.info(f"{label} -> {folder}")
        results[label] = evaluate(options, sets, subject, folder, command)
        subject.unload()  # room for the next one
    return results


def evaluate(
    options: EvalOptions,
    sets: dict[str, list[ProblemSet]],
    subject: Any,
    folder: Path,
    command: Sequence[str],
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
        mark = task_mark(task, options, subject, sets[task])
        if finished.get(task, {}).get("mark") == mark and (tables.is_scored(finished[task]) or not options.score):
            logger.info(f"{task}: already in {file}")
            continue
        found = run_task(task, options, subject, folder, sets[task])
        results["tasks"][task] = {**found, "settings": task_settings(task, options), "mark": mark}
        for note in found["notes"]:
            logger.warning(f"{task}: {note}")
        folder.mkdir(parents=True, exist_ok=True)
        write_json(file, results)
    return results


def task_settings(task: str, options: EvalOptions) -> dict[str, Any]:
    groups = _GROUPS.get(task, _CODE_GROUPS)
    others = {name for other, names in _SOURCES.items() if other != task for name in names}
    found = {name: value for name, value in options.values(*groups).items() if name not in {*_NOT_OF_NUMBERS, *others}}
    if found.get("prompt_style") == "auto":
        del found["prompt_style"]  # not decided yet
    return {"seed": options.seed, "limit": options.limit, **found}


def task_mark(task: str, options: EvalOptions, subject: Any, sets: Sequence[ProblemSet]) -> str:
    """The same for the same numbers: model, data and settings."""
    if task == "calibration":
        data = rows.contents(options.calibration_data or "", options.calibration_split)
        inputs: Any = [subject.identity, subject.feature_source, data, TEMPERATURES]
    else:
        inputs = [subject.identity, *([p.keys, p.asked[options.prompt_style], p.skipped] for p in sets)]
    return fingerprint([task, inputs, task_settings(task, options)])


def present(results: dict[str, tables.Results], folders: dict[str, Path], output: Path) -> tables.Rows:
    tables.check_same_space(results)
    moved = differences.against_first(results, folders)
    notes = differences.of_answers_that_are_none(results, folders)
    for note in notes:
        logger.warning(note)
    output.mkdir(parents=True, exist_ok=True)
    write_text(output / TABLE_FILE, tables.markdown(results, moved, notes))
    if any("calibration" in found["tasks"] for found in results.values()):
        tables.profile_plot(results, output / PLOT_FILE)
        tables.temperatures_plot(results, output / TEMPERATURES_FILE)
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
