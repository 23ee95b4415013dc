"""Which task reads which problems. A new task has a file `<name>_task.py` and a line here."""

from __future__ import annotations

from ebft.config.evaluation import EvalOptions
from ebft.data.rows import check_hub, check_place
from ebft.errors import ConfigError
from ebft.tasks.code_task import code_sets
from ebft.tasks.problem_set import ProblemSet
from ebft.tasks.translation_task import translation_set


def problem_sets(task: str, options: EvalOptions) -> list[ProblemSet]:
    """The problems of a task. Read first, so that an error in them shows before any model is loaded."""
    if task == "calibration":
        if options.calibration_data is None:
            raise ConfigError(
                "the task calibration needs --calibration-data: a file, a folder, a hub name or a built-in such as "
                "stdlib-functions"
            )
        check_place(options.calibration_data)
        check_hub(options.calibration_data)
        return []
    if task == "translation":
        return [translation_set(options)]
    return code_sets(task, options)
