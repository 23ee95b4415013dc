"""What the jobs of a sweep or a study read must be there: said before the first one starts, not when its turn comes."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, cast

from ebft import fetch
from ebft.config.evaluation import EvalOptions
from ebft.config.recipe import Recipe, check_hub_datasets, check_places
from ebft.data.row_format import RowFormat
from ebft.data.rows import LOOKED_AT, read_rows
from ebft.errors import ConfigError, DataError
from ebft.evaluate.tasks import problem_sets
from ebft.studies.points import Point, load_for_elsewhere
from ebft.studies.study_file import Row, Study
from ebft.studies.study_jobs import StudyPlan, TrainingRun

logger = logging.getLogger(__name__)


def check_points(points: Iterable[Point], elsewhere: bool) -> None:
    """elsewhere: jobs run on other machines, which may have what is not here; then it is only a warning."""
    problems = _Problems(elsewhere)
    for point in points:
        if not point.finished:
            _check_unchanged(point, point.command)
            _check_run(point.name, point.given, point.command, problems)
    problems.refuse()


def check_study(study: Study, elsewhere: bool) -> None:
    plan, problems = StudyPlan(study), _Problems(elsewhere)
    for run in plan.runs:
        if not plan.is_finished(run):
            _check_unchanged(run, run.row.method.command)
    for row in study.rows:
        if not _is_finished(row, plan):
            for values in row.method.candidates:
                settings = {**row.method.settings, **row.values, **values}
                _check_run(row.name, _without_methods(settings, study), row.method.command, problems)
    _check_weights(plan, problems)
    if study.evaluation and (plan.unknown or not all(plan.is_finished(job) for job in plan.evaluations)):
        _check_evaluation(_without_methods(study.evaluation, study), problems)
    problems.refuse("the first lines of the study's file may say how to make it" if study.text.startswith("#") else "")


def _without_methods(settings: dict[str, Any], study: Study) -> dict[str, Any]:
    """Without a feature network that will be there: the final model of a method."""
    if settings.get("feature_model") in study.methods:
        return {name: value for name, value in settings.items() if name != "feature_model"}
    return settings


def _is_finished(row: Row, plan: StudyPlan) -> bool:
    """The data of what is finished may be gone. A row that waits for a search has no final runs yet."""
    runs = [run for run in plan.runs if run.row == row]
    return bool(plan.final[row.name]) and all(plan.is_finished(run) for run in runs)


def _check_unchanged(job: Point | TrainingRun, command: str) -> None:
    """A run that has begun must have had these settings, or it would be found out when its turn comes."""
    from ebft.train.run_folder import BATCH, other_setting

    if (why := other_setting(job.run, job.given, command, BATCH)) is not None:
        raise ConfigError(
            f"{job.name}: {why}; what was run is not replaced: set it back, choose another output_dir, or delete that "
            "folder"
        )


def _check_weights(plan: StudyPlan, problems: _Problems) -> None:
    """Of what is finished the weights may be gone: a report does not need them, but what starts from them does."""
    finished = {str(run.run.resolve()) for run in plan.runs if plan.is_finished(run)}
    for job in plan.jobs:
        if plan.is_finished(job) or job.arguments[0] == "score":
            continue
        for model in finished & {job.model, job.feature_model}:
            from ebft.loading import Checkpoint  # which takes seconds; most studies have nothing to look at

            with problems.of(job.name):
                try:
                    Checkpoint.find(model)
                except ConfigError as error:
                    raise ConfigError(f"{error}; delete that run's folder, and it is trained again") from None


def _check_run(name: str, settings: dict[str, Any], command: str, problems: _Problems) -> None:
    before = problems.count
    for data in ("dataset", "validation_dataset"):
        with problems.of(name):
            check_places({data: settings.get(data)})
    with problems.of(name):
        fetch.check_models(settings)
    if problems.count > before:
        return  # the hub would be asked for files that are not here
    with problems.of(name):
        check_hub_datasets(settings)
    recipe = load_for_elsewhere({**settings, "output_dir": "x"}, command)
    for look_at in (_check_data, _check_tasks, _check_rewards):
        with problems.of(name):
            look_at(recipe)


def _check_evaluation(given: dict[str, Any], problems: _Problems) -> None:
    options = EvalOptions.from_values(given)
    with problems.of("evaluation"):
        fetch.check_models(given)
    for task in options.tasks:
        with problems.of("evaluation"):
            problem_sets(task, options)  # as `ebft eval` begins: problems are read, and a sandbox must be there
            if task == "calibration" and options.calibration_data is not None:
                _check_rows(options.calibration_data, options.calibration_split, options.data.row_format, answered=True)


class _Problems:
    """What is wrong with any of the jobs, said at once: who makes one missing file would meet the next one else."""

    def __init__(self, elsewhere: bool) -> None:
        self.elsewhere = elsewhere
        self.count = 0
        self.found: dict[str, str] = {}  # what is wrong, and the first job that has it

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            self.count += 1
            if self.elsewhere:
                logger.warning(f"not on this machine: {name}: {error}")
            else:
                self.found.setdefault(str(error), name)

    def refuse(self, way_out: str = "") -> None:
        """way_out: of files that are not there."""
        if self.found:
            missing = any("no such file" in problem for problem in self.found)
            said = [f"{name}: {problem}" for problem, name in self.found.items()]
            raise ConfigError("; ".join([*said, way_out] if missing and way_out else said))


def _check_tasks(recipe: Recipe) -> None:
    if tasks := recipe.training.eval_tasks:
        _check_problems(tuple(tasks), json.dumps(recipe.training.eval_task_options))


@cache
def _check_problems(tasks: tuple[str, ...], options: str) -> None:
    """Once for all runs of a study, most of which have the same."""
    from ebft.train.eval_callback import read_problems

    read_problems(tasks, json.loads(options))


def _check_rewards(recipe: Recipe) -> None:
    """They can be made, and one row can be rewarded: the others may be left out."""
    if recipe.command != "rlvr":
        return
    from ebft.baselines.verifiable_rewards import make_rewards, why_not_rewarded

    rewards = make_rewards(cast("Any", recipe.training), recipe.data.columns, Counter())
    if not all(map(_is_here, recipe.data.dataset)):
        return
    first: str | None = None
    for source in recipe.data.dataset:
        for number, row in enumerate(read_rows(source, recipe.data.dataset_split), 1):
            if (reason := why_not_rewarded(rewards, row, f"{source}: row {number}")) is None:
                return
            first = first or reason
    if first is not None:
        raise DataError(f"no row can be rewarded; the first: {first}")


def _check_data(recipe: Recipe) -> None:
    data, answered = recipe.data, recipe.command != "rlvr"
    for source in data.dataset:
        _check_rows(source, data.dataset_split, data.row_format, answered)
    if data.validation_dataset is not None:
        _check_rows(data.validation_dataset, data.validation_dataset_split, data.row_format, answered)


def _is_here(source: str) -> bool:
    return Path(source).expanduser().exists()


@cache
def _check_rows(source: str, split: str, row_format: RowFormat, answered: bool) -> None:
    """The first rows of a file or folder can be read and have what is needed. No hub dataset is downloaded for it."""
    if not _is_here(source):
        return
    rows = list(islice(read_rows(source, split), LOOKED_AT))
    if not rows:
        raise DataError(f"{source}: the file is empty")
    for number, row in enumerate(rows, 1):
        try:
            row_format.standard(row) if answered else row_format.prompt_of(row)
        except DataError as error:
            raise DataError(f"{source}: row {number}: {error}") from None
