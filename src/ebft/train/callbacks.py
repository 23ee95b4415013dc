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
from torch import nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations import TensorBoardCallback

from ebft.config.evaluation import EvalOptions
from ebft.errors import ConfigError, TrainingDiverged
from ebft.runtime import processes, sharding
from ebft.runtime.files import json_ready, write_text
from ebft.runtime.messages import progress
from ebft.train import checkpoints
from ebft.train.checkpoints import folder_at
from ebft.train.report import write_samples

logger = logging.getLogger(__name__)

AVERAGE_FILE = "feature_average.safetensors"
WITHOUT_WARM_UP = ("constant", "greedy", "reduce_lr_on_plateau")  # schedules
# Options of `ebft eval` that training itself decides.
_TAKEN = {"model", "tasks", "output", "compare", "feature_model", "backend", "dtype", "device", "overwrite"}


def keep_tensorboard_here(trainer: Trainer) -> None:
    """An evaluation before training would otherwise open the log in the working directory."""
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, TensorBoardCallback) and callback.logging_dir is None:
            callback.logging_dir = str(Path(str(trainer.args.output_dir)) / "runs")


class MetricsFile(TrainerCallback):
    """Every log entry as a line of `metrics.jsonl`. After a resume, lines beyond the checkpoint are dropped.

    What is measured after training with `load_best_model_at_end` is of the model of an earlier step: `model_step`.
    """

    def __init__(self, output_dir: str) -> None:
        self.file = Path(output_dir) / "metrics.jsonl"
        self.of_model: dict[str, int | None] = {}

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, *_: object, **__: object) -> None:
        self.of_model = {}
        if not state.is_world_process_zero:
            return
        warm_up = args.get_warmup_steps(state.max_steps)  # whose first step has a rate of 0
        if warm_up >= max(state.max_steps, 1) and args.lr_scheduler_type not in WITHOUT_WARM_UP:
            logger.warning(f"warm-up takes all {state.max_steps} steps; set warmup_steps=0, or train for more steps")
        if self.file.exists():  # the line that a killed run was writing has no end
            lines = [line for line in self.file.read_text().splitlines(keepends=True) if line.endswith("\n")]
            write_text(self.file, "".join(line for line in lines if json.loads(line)["step"] <= state.global_step))

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        # A run shorter than `logging_steps` would leave no metrics at all.
        if state.global_step >= state.max_steps and args.logging_strategy != "no":
            control.should_log = True

    def on_log(self, args: object, state: TrainerState, *_: object, logs: object = None, **__: object) -> None:
        if state.is_world_process_zero and logs:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("a") as file:
                file.write(json.dumps({"step": state.global_step, **json_ready(logs), **self.of_model}) + "\n")

    def on_train_end(self, args: TrainingArguments, state: TrainerState, *_: object, **__: object) -> None:
        if args.load_best_model_at_end and state.best_model_checkpoint:
            self.of_model = {"model_step": state.best_global_step}


class Checkpoints(TrainerCallback):
    """Marks a checkpoint as complete after it is written, then deletes old ones; asks for log-spaced ones. Keeps the
    feature network of feature_source=average in it, and moves that network after the model."""

    def __init__(self, trainer: Any) -> None:
        self.trainer, self.log_spaced = trainer, trainer.settings.save_log_spaced
        self.limit: int | None = None

    @property
    def average(self) -> nn.Module | None:
        features = self.trainer.features
        return features.network if features is not None and features.source == "average" else None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, *_: object, **__: object) -> None:
        # The Trainer would delete old checkpoints before the new one is marked.
        if args.save_total_limit is not None:
            self.limit, args.save_total_limit = args.save_total_limit, None
        folder, average = folder_at(args.output_dir, state.global_step), self.average
        if average is not None and (folder / sharding.AVERAGE).exists():
            sharding.load(folder / sharding.AVERAGE, average.state_dict())
        elif average is not None and (folder / AVERAGE_FILE).exists():
            average.load_state_dict(load_file(folder / AVERAGE_FILE))

    def on_step_end(self, args: object, state: TrainerState, control: TrainerControl, **_: object) -> None:
        if self.average is not None:
            self.trainer.features.update_average(self.trainer.model)
        if self.log_spaced and _is_power_of_two(state.global_step):
            control.should_save = True
        if control.should_save or state.global_step >= state.max_steps:
            self.trainer.deferred_checks.run(wait=True)  # a model that has diverged is not worth keeping

    def on_save(self, args: TrainingArguments, state: TrainerState, *_: object, **__: object) -> None:
        folder, average = folder_at(args.output_dir, state.global_step), self.average
        writes = state.is_world_process_zero and folder.exists()
        if average is not None and sharding.is_sharded(average):
            sharding.save(folder / sharding.AVERAGE, average.state_dict())
        elif average is not None and writes:
            save_file(average.state_dict(), folder / AVERAGE_FILE)
        processes.barrier()  # the others have written their files too; if one has died, there will be no mark
        if writes:
            checkpoints.mark_complete(folder)
            keep = {Path(state.best_model_checkpoint)} if state.best_model_checkpoint else set()
            if self.log_spaced:
                complete = checkpoints.complete_checkpoints(folder.parent)
                keep |= {p for p in complete if _is_power_of_two(checkpoints.step_of(p))}
            checkpoints.rotate(folder.parent, self.limit, keep)
            self.trainer.costs.pause()


def _is_power_of_two(step: int) -> bool:
    return step > 0 and step & (step - 1) == 0


class Samples(TrainerCallback):
    """A table of contexts, truths and completions, every `samples_every` steps, of the trainer's `example()`."""

    def __init__(self, trainer: Any, every: int) -> None:
        self.trainer, self.every = trainer, every

    def on_step_end(self, args: TrainingArguments, state: TrainerState, *_: object, **__: object) -> None:
        if self.every and (state.global_step % self.every == 0 or state.global_step == 1):
            example = self.trainer.example()  # all processes take part
            if example is not None and state.is_world_process_zero:
                write_samples(Path(str(args.output_dir)), state.global_step, example, self.trainer.processing_class)


class OptimizerTime(TrainerCallback):
    """The optimiser's step, timed beside the phases that the trainer times itself."""

    def __init__(self, trainer: Any) -> None:
        self.clock = trainer.clock

    def on_pre_optimizer_step(self, *_: object, **__: object) -> None:
        self.start = self.clock.mark()

    def on_optimizer_step(self, *_: object, **__: object) -> None:
        self.clock.add("optimizer", self.start)


class EvalTasks(TrainerCallback):
    """Tasks of `ebft eval` on the model as it is, every so many steps or at every evaluation. Numbers are logged as
    `eval_<task>_<metric>`, with `_se` beside each; generations are under `eval_tasks/step-000100/`.

    Nothing here draws from the training's random numbers. With several processes the first one runs the tasks. All
    problems are read when it is made, so that a mistake shows before the first step.
    """

    def __init__(self, trainer: Any, tasks: Sequence[str], given: dict[str, Any], every: int | None = None) -> None:
        from ebft.evaluate.tasks import problem_sets

        if taken := _TAKEN & given.keys():
            raise ConfigError(f"eval_task_options holds {min(taken)!r}, which training decides itself; take it out")
        self.trainer, self.every = trainer, every
        self.options = EvalOptions.from_values({**given, "tasks": list(tasks), "overwrite": True})
        self.sets = {task: problem_sets(task, self.options) for task in tasks}

    def on_step_end(self, args: TrainingArguments, state: TrainerState, *_: object, **__: object) -> None:
        if self.every is not None and state.global_step % self.every == 0:
            self.trainer.log(self.run(args, state))

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, *_: object, metrics: Any = None, **__: object
    ) -> None:
        if self.every is None:
            found = self.run(args, state)
            self.trainer.log(dict(found))
            metrics.update(found)  # so that one of them can choose the best checkpoint

    def run(self, args: TrainingArguments, state: TrainerState) -> dict[str, float]:
        # The same numbers everywhere: they may choose the best checkpoint.
        found = self._run(Path(str(args.output_dir)), state.global_step) if processes.rank() == 0 else {}
        return processes.from_first(found)

    def _run(self, output: Path, step: int) -> dict[str, float]:
        from ebft.evaluate.run_task import run_task
        from ebft.evaluate.subject import LoadedSubject

        trainer, options = self.trainer, self.options
        model, tokenizer = trainer.compute_model(), trainer.processing_class
        subject = LoadedSubject(model, tokenizer, trainer.features, f"step {step}", options.batch_size)
        logs: dict[str, float] = {}
        for task in options.tasks:
            start = time.perf_counter()
            with trainer.computing():
                found = run_task(task, options, subject, output / "eval_tasks" / f"step-{step:06d}", self.sets[task])
            for note in found.get("notes", ()):
                logger.warning(f"{task} at step {step}: {note}")
            points = {f"cfm_at_{point['length']}": point for point in found.get("profile", ())}
            for name, entry in (found["metrics"] | points).items():
                key = f"eval_{task}_{name}".replace(" ", "_")
                logs[key] = math.nan if entry["value"] is None else entry["value"]
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

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        name = f"eval_{str(args.metric_for_best_model).removeprefix('eval_')}"
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
        self.advance: Callable[[int], object] = lambda steps: None

    def on_train_begin(self, args: object, state: TrainerState, *_: object, **__: object) -> None:
        if state.is_world_process_zero and self.bar:
            steps = progress("training", state.max_steps, state.global_step, leave=False)
            self.advance = self.open.enter_context(steps)

    def on_step_end(self, *_: object, **__: object) -> None:
        self.advance(1)

    def on_train_end(self, *_: object, **__: object) -> None:
        self.open.close()

    def on_log(self, args: object, state: TrainerState, *_: object, logs: Any = None, **__: object) -> None:
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
