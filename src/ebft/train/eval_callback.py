"""Tasks of `ebft eval` during training, on the model as it is: every so many steps, or at every evaluation.

Numbers are logged as `eval_<task>_<metric>`, with `_se` beside each; generations and outcomes are under
`eval_tasks/step-000100/` in the output folder. Nothing here draws from the training's random numbers. With several
processes the first one runs the tasks, and the others wait for its numbers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from ebft.config.evaluation import EvalOptions
from ebft.config.training import EBFTConfig
from ebft.errors import ConfigError
from ebft.runtime import processes

logger = logging.getLogger(__name__)

# Options that training itself decides.
_TAKEN = (
    "model",
    "tasks",
    "output",
    "compare",
    "feature_model",
    "backend",
    "dtype",
    "device",
    "overwrite",
    "replace_changed",
)


def read_problems(tasks: Sequence[str], given: dict[str, Any]) -> tuple[EvalOptions, dict[str, Any]]:
    """The options of `ebft eval` for eval_tasks, of which eval_task_options gives some, and the problems of each."""
    from ebft.evaluate.tasks import problem_sets

    for name in given:
        if name in _TAKEN:
            raise ConfigError(f"eval_task_options holds {name!r}, which training decides itself; take it out")
    options = EvalOptions.from_values({**given, "tasks": list(tasks), "overwrite": True})
    return options, {task: problem_sets(task, options) for task in tasks}


class EvalTasks(TrainerCallback):
    """Reads all problems when it is made, so that a mistake shows before the first step."""

    def __init__(self, trainer: Any, args: EBFTConfig) -> None:
        self.trainer = trainer
        self.options, self.sets = read_problems(args.eval_tasks, args.eval_task_options)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if args.eval_tasks_every is not None and state.global_step % args.eval_tasks_every == 0:
            self.trainer.log(self.run(args, state))

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        if args.eval_tasks_every is None:
            found = self.run(args, state)
            self.trainer.log(dict(found))
            if metrics is not None:
                metrics.update(found)  # so that one of them can choose the best checkpoint

    def run(self, args: Any, state: Any) -> dict[str, float]:
        # The same numbers everywhere: they may choose the best checkpoint.
        return processes.from_first(self._run(args, state) if processes.rank() == 0 else None)

    def _run(self, args: Any, state: Any) -> dict[str, float]:
        from ebft.evaluate.run_task import run_task
        from ebft.evaluate.subject import LoadedSubject

        trainer = self.trainer
        step = state.global_step
        subject = LoadedSubject(
            trainer.compute_model(), trainer.processing_class, trainer.features, f"step {step}", self.options.batch_size
        )
        folder = Path(args.output_dir) / "eval_tasks" / f"step-{step:06d}"
        logs: dict[str, float] = {}
        for task in self.options.tasks:
            start = time.perf_counter()
            with trainer.compute_loss_context_manager():
                found = run_task(task, self.options, subject, folder, self.sets[task])
            for note in found.get("notes", ()):
                logger.warning(f"{task} at step {step}: {note}")
            points = {f"cfm_at_{point['length']}": point for point in found.get("profile", ())}
            for name, entry in (found["metrics"] | points).items():
                key = f"eval_{task}_{name}".replace(" ", "_")
                logs[key] = float("nan") if entry["value"] is None else entry["value"]
                if entry["standard_error"] is not None:
                    logs[f"{key}_se"] = entry["standard_error"]
            logs[f"eval_{task}_runtime"] = time.perf_counter() - start
        trainer.costs.pause()
        return logs
