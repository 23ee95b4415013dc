"""What the jobs of a sweep or a study read must be there: said before the first one starts, not when its turn comes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ebft import fetch
from ebft.config.evaluation import EvalOptions
from ebft.config.recipe import check_hub_datasets, check_places
from ebft.errors import ConfigError
from ebft.studies.points import Point
from ebft.studies.study_file import Row, Study
from ebft.studies.study_jobs import StudyPlan
from ebft.tasks.registry import problem_sets

logger = logging.getLogger(__name__)


def check_points(points: Iterable[Point], elsewhere: bool) -> None:
    """elsewhere: jobs run on other machines, which may have what is not here; then it is only a warning."""
    with _refusing(elsewhere):
        for point in points:
            if not point.finished:
                _check_run(point.name, point.given)


def check_study(study: Study, elsewhere: bool) -> None:
    plan = StudyPlan(study)
    with _refusing(elsewhere):
        for row in study.rows:
            if not _is_finished(row, plan):
                for values in row.method.candidates:
                    settings = {**row.method.settings, **row.values, **values}
                    _check_run(row.name, _without_methods(settings, study))
        if plan.unknown or not all(plan.is_finished(evaluation) for evaluation in plan.evaluations):
            _check_evaluation(study)


@contextmanager
def _refusing(elsewhere: bool) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        if not elsewhere:
            raise
        logger.warning(f"not on this machine: {error}")


def _without_methods(settings: dict[str, Any], study: Study) -> dict[str, Any]:
    """Without a feature network that will be there: the final model of a method."""
    if settings.get("feature_model") in study.methods:
        return {name: value for name, value in settings.items() if name != "feature_model"}
    return settings


def _is_finished(row: Row, plan: StudyPlan) -> bool:
    """The data of what is finished may be gone. A row that waits for a search has no final runs yet."""
    runs = [run for run in plan.runs if run.row == row]
    return bool(plan.final[row.name]) and all(plan.is_finished(run) for run in runs)


def _check_run(name: str, settings: dict[str, Any]) -> None:
    try:
        check_places(settings)
        fetch.check_models(settings)
        check_hub_datasets(settings)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from None


def _check_evaluation(study: Study) -> None:
    if not study.evaluation:
        return
    given = _without_methods(study.evaluation, study)
    options = EvalOptions.from_values(given)
    try:
        fetch.check_models(given)
        for task in options.tasks:
            problem_sets(task, options)  # as `ebft eval` begins: problems are read, and a sandbox must be there
    except ValueError as error:
        raise ConfigError(f"evaluation: {error}") from None
