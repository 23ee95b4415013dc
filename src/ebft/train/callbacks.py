"""What happens beside training: metrics, costs, checkpoints, samples, tasks, progress, stopping.

The same for EBFT and the baselines. A callback looks at its trainer, which has what transformers hands around: `args`,
`state` and `control`.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import TrainerCallback

from ebft.config.evaluation import EvalOptions
from ebft.errors import ConfigError
from ebft.runtime import processes, sharding
from ebft.runtime.files import json_ready, read_json, read_jsonl, write_json, write_jsonl
from ebft.runtime.messages import progress
from ebft.train import run_folder
from ebft.train.report import write_samples

logger = logging.getLogger(__name__)

COSTS_FILE, AVERAGE_FILE = "spent.json", "feature_average.safetensors"  # in a checkpoint
WITHOUT_WARM_UP = ("constant", "greedy", "reduce_lr_on_plateau")  # schedules
# Options of `ebft eval` that training itself decides.
_TAKEN = {"model", "tasks", "output", "compare", "feature_model", "backend", "dtype", "device", "overwrite"}


class Callback(TrainerCallback):
    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    @property
    def step(self) -> int:
        return int(self.trainer.state.global_step)

    @property
    def output(self) -> Path:
        return Path(self.trainer.args.output_dir)

    @property
    def checkpoint(self) -> Path:
        """Of this step, whether it is there or not."""
        return self.output / f"checkpoint-{self.step}"

    @property
    def writes_checkpoint(self) -> bool:
        return self.trainer.state.is_world_process_zero and self.checkpoint.exists()

    @property
    def samples_are_due(self) -> bool:
        every = self.trainer.settings.samples_every
        return bool(every) and (self.step % every == 0 or self.step == 1)


class MetricsFile(Callback):
    """Every log entry as a line of `metrics.jsonl`. After a resume, lines beyond the checkpoint are dropped.

    What is measured after training with `load_best_model_at_end` is of the model of an earlier step: `model_step`.
    """

    of_model: Mapping[str, int | None] = {}

    @property
    def file(self) -> Path:
        return self.output / "metrics.jsonl"

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.of_model, args, state = {}, self.trainer.args, self.trainer.state
        if not state.is_world_process_zero:
            return
        warm_up = args.get_warmup_steps(state.max_steps)  # whose first step has a rate of 0
        if warm_up >= max(state.max_steps, 1) and args.lr_scheduler_type not in WITHOUT_WARM_UP:
            logger.warning(f"warm-up takes all {state.max_steps} steps; set warmup_steps=0, or train for more steps")
        if self.file.exists():
            write_jsonl(self.file, [entry for entry in read_jsonl(self.file) if entry["step"] <= self.step])

    def on_step_end(self, *_: Any, **__: Any) -> None:
        # A run shorter than `logging_steps` would leave no metrics at all.
        if self.step >= self.trainer.state.max_steps and self.trainer.args.logging_strategy != "no":
            self.trainer.control.should_log = True

    def on_log(self, *_: Any, logs: Any = None, **__: Any) -> None:
        if self.trainer.state.is_world_process_zero and logs:
            self.output.mkdir(parents=True, exist_ok=True)
            with self.file.open("a") as file:
                file.write(json.dumps({"step": self.step, **json_ready(logs), **self.of_model}) + "\n")

    def on_train_end(self, *_: Any, **__: Any) -> None:
        if self.trainer.args.load_best_model_at_end and self.trainer.state.best_model_checkpoint:
            self.of_model = {"model_step": self.trainer.state.best_global_step}


class CostTracker(Callback):
    """Seconds, tokens and FLOPs of training so far, evaluation and saving left out. Continues after a resume."""

    def __init__(self, trainer: Any) -> None:
        super().__init__(trainer)
        self._counts: dict[str, float | Tensor] = dict.fromkeys(("seconds", "tokens", "generated_tokens", "flops"), 0.0)
        self._mark = 0.0

    def add(self, **counts: float | Tensor) -> None:
        """Numbers, or tensors that may still be under way on a GPU: nothing waits for them here."""
        for name, value in counts.items():
            self._counts[name] = self._counts[name] + (wide(value.detach()) if isinstance(value, Tensor) else value)

    def totals(self) -> dict[str, float]:
        return {f"spent/{name}": float(value) for name, value in self._counts.items()}

    def pause(self) -> None:
        """What came since the end of the step was not training."""
        self._mark = time.perf_counter()

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._counts.update(read_json(self.checkpoint / COSTS_FILE) or {})
        self.pause()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        control = self.trainer.control
        # Work that the GPU still has to do belongs to the step, not to the evaluation behind it.
        if torch.cuda.is_available() and (control.should_evaluate or control.should_save or control.should_log):
            torch.cuda.synchronize()
        self._counts["seconds"] += time.perf_counter() - self._mark
        self.pause()

    def on_evaluate(self, *_: Any, **__: Any) -> None:
        self.pause()

    def on_save(self, *_: Any, **__: Any) -> None:
        if self.writes_checkpoint:
            write_json(self.checkpoint / COSTS_FILE, {name: float(value) for name, value in self._counts.items()})
        self.pause()


def wide(count: Tensor) -> Tensor:
    """Counts grow beyond what float32 can count; Apple's GPUs have nothing wider."""
    return count.float() if count.device.type == "mps" else count.double()


class Checkpoints(Callback):
    """Marks a checkpoint as complete after it is written, then deletes old ones; asks for log-spaced ones. Keeps the
    feature network of feature_source=average in it, and moves that network after the model."""

    limit: int | None = None

    @property
    def average(self) -> nn.Module | None:
        features = self.trainer.features
        return features.network if features is not None and features.source == "average" else None

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        # The Trainer would delete old checkpoints before the new one is marked.
        if self.trainer.args.save_total_limit is not None:
            self.limit, self.trainer.args.save_total_limit = self.trainer.args.save_total_limit, None
        shards, file, average = self.checkpoint / sharding.AVERAGE, self.checkpoint / AVERAGE_FILE, self.average
        if average is not None and shards.exists():
            sharding.load(shards, average.state_dict())
        elif average is not None and file.exists():
            average.load_state_dict(load_file(file))

    def on_step_end(self, *_: Any, **__: Any) -> None:
        control = self.trainer.control
        if self.average is not None:
            self.trainer.features.update_average(self.trainer.model)
        if self.trainer.settings.save_log_spaced and _is_power_of_two(self.step):
            control.should_save = True
        if control.should_save or self.step >= self.trainer.state.max_steps:
            self.trainer.deferred_checks.run(wait=True)  # a model that has diverged is not worth keeping

    def on_save(self, *_: Any, **__: Any) -> None:
        average = self.average
        if average is not None and sharding.is_sharded(average):
            sharding.save(self.checkpoint / sharding.AVERAGE, average.state_dict())
        elif average is not None and self.writes_checkpoint:
            save_file(average.state_dict(), self.checkpoint / AVERAGE_FILE)
        processes.barrier()  # the others have written their files too; if one has died, there will be no mark
        if self.writes_checkpoint:
            run_folder.mark_complete(self.checkpoint)
            best = self.trainer.state.best_model_checkpoint
            keep = {Path(best)} if best else set()
            if self.trainer.settings.save_log_spaced:
                complete = run_folder.complete_checkpoints(self.output)
                keep |= {p for p in complete if _is_power_of_two(run_folder.step_of(p))}
            run_folder.rotate(self.output, self.limit, keep)
            self.trainer.costs.pause()


def _is_power_of_two(step: int) -> bool:
    return step > 0 and step & (step - 1) == 0


class Samples(Callback):
    """A table of contexts, truths and completions, every `samples_every` steps, of the trainer's `example()`."""

    def on_step_end(self, *_: Any, **__: Any) -> None:
        if self.samples_are_due:
            example = self.trainer.example()  # all processes take part
            if example is not None and self.trainer.state.is_world_process_zero:
                write_samples(self.output, self.step, example, self.trainer.processing_class)


class OptimizerTime(Callback):
    """The optimiser's step, timed beside the phases that the trainer times itself."""

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        self.start = self.trainer.clock.mark()

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        self.trainer.clock.add("optimizer", self.start)


class EvalTasks(Callback):
    """Tasks of `ebft eval` on the model as it is, every so many steps or at every evaluation. Numbers are logged as
    `eval_<task>_<metric>`, with `_se` beside each; generations are under `eval_tasks/step-000100/`.

    Nothing here draws from the training's random numbers. With several processes the first one runs the tasks. All
    problems are read when it is made, so that a mistake shows before the first step.
    """

    def __init__(self, trainer: Any, settings: Any) -> None:
        from ebft.evaluate.tasks import problem_sets

        super().__init__(trainer)
        tasks, given, self.every = settings.eval_tasks, settings.eval_task_options, settings.eval_tasks_every
        if taken := _TAKEN & given.keys():
            raise ConfigError(f"eval_task_options holds {min(taken)!r}, which training decides itself; take it out")
        self.options = EvalOptions.from_values({**given, "tasks": list(tasks), "overwrite": True})
        self.sets = {task: problem_sets(task, self.options) for task in tasks}

    def on_step_end(self, *_: Any, **__: Any) -> None:
        if self.every is not None and self.step % self.every == 0:
            self.trainer.log(self._run())

    def on_evaluate(self, *_: Any, metrics: Any = None, **__: Any) -> None:
        if self.every is None:
            found = self._run()
            self.trainer.log(dict(found))
            metrics.update(found)  # so that one of them can choose the best checkpoint

    def _run(self) -> dict[str, float]:
        """The same numbers in all processes: they may choose the best checkpoint."""
        from ebft.evaluate.run_task import run_task
        from ebft.evaluate.subject import LoadedSubject

        logs: dict[str, float] = {}
        if processes.rank() == 0:
            trainer, options, name = self.trainer, self.options, f"step {self.step}"
            model, folder = trainer.compute_model(), self.output / "eval_tasks" / f"step-{self.step:06d}"
            subject = LoadedSubject(model, trainer.processing_class, trainer.features, name, options.batch_size)
            for task in options.tasks:
                start = time.perf_counter()
                with trainer.computing():
                    found = run_task(task, options, subject, folder, self.sets[task])
                for note in found.get("notes", ()):
                    logger.warning(f"{task} at {name}: {note}")
                points = {f"cfm_at_{point['length']}": point for point in found.get("profile", ())}
                for metric, entry in (found["metrics"] | points).items():
                    key = f"eval_{task}_{metric}".replace(" ", "_")
                    logs[key] = math.nan if entry["value"] is None else entry["value"]
                    if entry["standard_error"] is not None:
                        logs[f"{key}_se"] = entry["standard_error"]
                logs[f"eval_{task}_runtime"] = time.perf_counter() - start
            trainer.costs.pause()
        return processes.from_first(logs)


class EarlyStopping(Callback):
    """Stops a run whose validation no longer gets better. It looks at the log, which checkpoints hold: transformers'
    own callback forgets what it has seen when a run resumes, or comes back with the patience of the checkpoint."""

    def on_evaluate(self, *_: Any, **__: Any) -> None:
        args, patience = self.trainer.args, self.trainer.settings.early_stopping_patience
        name = f"eval_{str(args.metric_for_best_model).removeprefix('eval_')}"
        sign = -1 if args.greater_is_better else 1
        best, since = math.inf, 0
        for value in (sign * entry[name] for entry in self.trainer.state.log_history if name in entry):
            is_better = best - value > self.trainer.settings.early_stopping_threshold
            best, since = (value, 0) if is_better else (best, since + 1)
        if since >= patience:
            self.trainer.control.should_training_stop = True
            if self.trainer.state.is_world_process_zero:
                logger.info(f"stopped at step {self.step}: no better {name} in {patience} evaluations")


class Progress(Callback):
    """How far training is, as a bar or once a minute in a log file, and a short line for every log entry.

    shown: metrics, by their short names.
    """

    def __init__(self, trainer: Any, shown: Mapping[str, str], bar: bool) -> None:
        super().__init__(trainer)
        self.shown, self.bar, self.open = shown, bar, ExitStack()
        self.advance: Callable[[int], object] = lambda steps: None

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        if self.trainer.state.is_world_process_zero and self.bar:
            steps = progress("training", self.trainer.state.max_steps, self.step, leave=False)
            self.advance = self.open.enter_context(steps)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.advance(1)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.open.close()

    def on_log(self, *_: Any, logs: Any = None, **__: Any) -> None:
        found = {short: logs[name] for name, short in self.shown.items() if name in logs}
        if "eval_cfm" in logs:
            evaluated = {k.removeprefix("eval_"): v for k, v in logs.items() if k.startswith("eval_")}
            found |= {k: v for k, v in evaluated.items() if not k.endswith(("_se", "runtime"))}
        if found and self.trainer.state.is_world_process_zero:
            logger.info(f"step {self.step}: " + ", ".join(f"{k} {float(v):.4g}" for k, v in found.items()))
