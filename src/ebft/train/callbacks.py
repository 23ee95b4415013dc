"""What happens beside training, EBFT's or a baseline's: metrics, checkpoints, samples, tasks, progress, stopping."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import TrainerCallback
from transformers.integrations import TensorBoardCallback
from transformers.trainer_utils import IntervalStrategy

from ebft.config.evaluation import EvalOptions
from ebft.errors import ConfigError, TrainingDiverged
from ebft.runtime import processes, sharding
from ebft.runtime.files import json_ready, write_text
from ebft.runtime.messages import progress
from ebft.train import checkpoints
from ebft.train.report import write_samples

logger = logging.getLogger(__name__)

AVERAGE_FILE = "feature_average.safetensors"
WITHOUT_WARM_UP = ("constant", "greedy", "reduce_lr_on_plateau")  # schedules
# Options of `ebft eval` that training itself decides.
_TAKEN = {"model", "tasks", "output", "compare", "feature_model", "backend", "dtype", "device", "overwrite"}


def keep_tensorboard_here(trainer: Any) -> None:
    """An evaluation before training would otherwise open the log in the working directory."""
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, TensorBoardCallback) and callback.logging_dir is None:
            callback.logging_dir = str(Path(trainer.args.output_dir) / "runs")


class MetricsFile(TrainerCallback):
    """Every log entry as a line of `metrics.jsonl`. After a resume, lines beyond the checkpoint are dropped.

    What is measured after training with `load_best_model_at_end` is of the model of an earlier step: `model_step`.
    """

    model_step: int | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.model_step = None
        file = Path(args.output_dir) / "metrics.jsonl"
        if not state.is_world_process_zero:
            return
        warm_up = args.get_warmup_steps(state.max_steps)  # whose first step has a rate of 0
        if warm_up >= max(state.max_steps, 1) and args.lr_scheduler_type not in WITHOUT_WARM_UP:
            logger.warning(f"warm-up takes all {state.max_steps} steps; set warmup_steps=0, or train for more steps")
        if file.exists():  # the line that a killed run was writing has no end
            lines = [line for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
            write_text(file, "".join(line for line in lines if json.loads(line)["step"] <= state.global_step))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        # A run shorter than `logging_steps` would leave no metrics at all.
        if state.global_step >= state.max_steps and args.logging_strategy != IntervalStrategy.NO:
            control.should_log = True
        return control

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero or not logs:
            return
        of_model = {} if self.model_step is None else {"model_step": self.model_step}
        folder = Path(args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": state.global_step, **json_ready(logs), **of_model}) + "\n")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if args.load_best_model_at_end and state.best_model_checkpoint:
            self.model_step = state.best_global_step


class Checkpoints(TrainerCallback):
    """Marks a checkpoint as complete after it is written, then deletes old ones; asks for log-spaced ones. Keeps the
    feature network of feature_source=average in it, and moves that network after the model."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.limit: int | None = None

    @property
    def average(self) -> Any:
        features = self.trainer.features
        return features.network if features is not None and features.source == "average" else None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # The Trainer would delete old checkpoints before the new one is marked.
        if args.save_total_limit is not None:
            self.limit, args.save_total_limit = args.save_total_limit, None
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if self.average is None or not state.global_step:
            return
        if (folder / sharding.AVERAGE).exists():
            sharding.load(folder / sharding.AVERAGE, self.average.state_dict())
        elif (folder / AVERAGE_FILE).exists():
            self.average.load_state_dict(load_file(folder / AVERAGE_FILE))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        if self.average is not None:
            self.trainer.features.update_average(self.trainer.model)
        if args.save_log_spaced and _is_power_of_two(state.global_step):
            control.should_save = True
        if control.should_save or state.global_step >= state.max_steps:
            self.trainer.deferred_checks.run(wait=True)  # a model that has diverged is not worth keeping
        return control

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        writes = state.is_world_process_zero and folder.exists()
        if self.average is not None and sharding.is_sharded(self.average):
            sharding.save(folder / sharding.AVERAGE, self.average.state_dict())
        elif self.average is not None and writes:
            save_file(self.average.state_dict(), folder / AVERAGE_FILE)
        processes.barrier()  # the others have written their files too; if one has died, there will be no mark
        if writes:
            checkpoints.mark_complete(folder)
            keep = {Path(state.best_model_checkpoint)} if state.best_model_checkpoint else set()
            if args.save_log_spaced:
                complete = checkpoints.complete_checkpoints(args.output_dir)
                keep |= {p for p in complete if _is_power_of_two(checkpoints.step_of(p))}
            checkpoints.rotate(args.output_dir, self.limit, keep)
            self.trainer.costs.pause()


def _is_power_of_two(step: int) -> bool:
    return step > 0 and step & (step - 1) == 0


class Samples(TrainerCallback):
    """A table of contexts, truths and completions, every `samples_every` steps, of the trainer's `example()`."""

    def __init__(self, trainer: Any, every: int) -> None:
        self.trainer, self.every = trainer, every

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.every and (state.global_step % self.every == 0 or state.global_step == 1):
            example = self.trainer.example()  # all processes take part
            if example is not None and state.is_world_process_zero:
                write_samples(Path(args.output_dir), state.global_step, example, self.trainer.processing_class)


class OptimizerTime(TrainerCallback):
    """The optimiser's step, timed beside the phases that the trainer times itself."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.start = self.trainer.clock.mark()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.clock.add("optimizer", self.start)


class EvalTasks(TrainerCallback):
    """Tasks of `ebft eval` on the model as it is, every so many steps or at every evaluation. Numbers are logged as
    `eval_<task>_<metric>`, with `_se` beside each; generations are under `eval_tasks/step-000100/`.

    Nothing here draws from the training's random numbers. With several processes the first one runs the tasks. All
    problems are read when it is made, so that a mistake shows before the first step.
    """

    def __init__(self, trainer: Any, tasks: Sequence[str], given: dict[str, Any]) -> None:
        from ebft.evaluate.tasks import problem_sets

        for name in given:
            if name in _TAKEN:
                raise ConfigError(f"eval_task_options holds {name!r}, which training decides itself; take it out")
        self.trainer = trainer
        self.options = EvalOptions.from_values({**given, "tasks": list(tasks), "overwrite": True})
        self.sets = {task: problem_sets(task, self.options) for task in tasks}

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
        return processes.from_first(self._run(args, state.global_step) if processes.rank() == 0 else None)

    def _run(self, args: Any, step: int) -> dict[str, float]:
        from ebft.evaluate.run_task import run_task
        from ebft.evaluate.subject import LoadedSubject

        trainer, options = self.trainer, self.options
        model, tokenizer = trainer.compute_model(), trainer.processing_class
        subject = LoadedSubject(model, tokenizer, trainer.features, f"step {step}", options.batch_size)
        folder = Path(args.output_dir) / "eval_tasks" / f"step-{step:06d}"
        logs: dict[str, float] = {}
        for task in options.tasks:
            start = time.perf_counter()
            with trainer.compute_loss_context_manager():
                found = run_task(task, options, subject, folder, self.sets[task])
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


class EarlyStopping(TrainerCallback):
    """Stops a run whose validation no longer gets better. It looks at the log, which checkpoints hold: transformers'
    own callback forgets what it has seen when a run resumes, or comes back with the patience of the checkpoint."""

    def __init__(self, patience: int, threshold: float) -> None:
        self.patience, self.threshold = patience, threshold

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        name = f"eval_{args.metric_for_best_model.removeprefix('eval_')}"
        sign = -1 if args.greater_is_better else 1
        best, since = math.inf, 0
        for value in (sign * entry[name] for entry in state.log_history if name in entry):
            best, since = (value, 0) if best - value > self.threshold else (best, since + 1)
        if since >= self.patience:
            control.should_training_stop = True
            if state.is_world_process_zero:
                logger.info(f"stopped at step {state.global_step}: no better {name} in {self.patience} evaluations")


class Progress(TrainerCallback):
    """How far training is, as a bar or once a minute in a log file, and a short line for every log entry."""

    def __init__(self, shown: Mapping[str, str], bar: bool) -> None:
        self.shown, self.bar = shown, bar
        self.open = ExitStack()
        self.advance: Callable[[int], Any] = lambda steps: None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero and self.bar:
            steps = progress("training", state.max_steps, state.global_step, leave=False)
            self.advance = self.open.enter_context(steps)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.advance(1)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.open.close()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        logs = logs or {}
        found = {short: logs[name] for name, short in self.shown.items() if name in logs}
        if "eval_cfm" in logs:
            evaluated = {k.removeprefix("eval_"): v for k, v in logs.items() if k.startswith("eval_")}
            found |= {k: v for k, v in evaluated.items() if not k.endswith(("_se", "runtime"))}
        if found and state.is_world_process_zero:
            logger.info(f"step {state.global_step}: " + ", ".join(f"{k} {float(v):.4g}" for k, v in found.items()))


def finite(name: str, step: int, advice: str) -> Callable[[float], None]:
    """A check for `DeferredChecks`."""

    def check(value: float) -> None:
        if not math.isfinite(value):
            raise TrainingDiverged(f"the {name} is {value} at step {step}; {advice}")

    return check


def check_gradients(trainer: Any, advice: str) -> None:
    """Look at the norm by which the Trainer clips: a gradient can be no number where the loss is fine. The norm is the
    same in all processes, so that all of them stop or none does."""
    if trainer.accelerator.scaler is not None:
        return  # float16: a gradient too large for it is dropped, and the next one scaled down
    clip = trainer.accelerator.clip_grad_norm_

    def clip_and_check(*args: Any, **kwargs: Any) -> Any:
        norm = clip(*args, **kwargs)
        check = finite("gradient's norm", trainer.state.global_step + 1, advice)
        trainer.deferred_checks.add(torch.as_tensor(norm), check)
        return norm

    trainer.accelerator.clip_grad_norm_ = clip_and_check
