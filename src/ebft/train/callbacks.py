"""What a run may have beside its training: tasks, progress in the terminal, schedulers' notices. A callback
looks at its trainer, which has what transformers hands around: `args`, `state` and `control`."""

from __future__ import annotations

import logging
import math
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

import torch
from transformers import TrainerCallback

from ebft.config.evaluation import EvalOptions
from ebft.errors import Preempted
from ebft.runtime import processes
from ebft.runtime.launch import NOTICES, on_notice
from ebft.runtime.messages import progress
from ebft.train import run_folder

logger = logging.getLogger(__name__)


class Callback(TrainerCallback):
    def __init__(self, trainer: Any = None) -> None:
        self.trainer = trainer

    @property
    def step(self) -> int:
        return int(self.trainer.state.global_step)


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
        self.options = EvalOptions.from_values({**given, "tasks": list(tasks), "overwrite": True})
        self.sets = {task: problem_sets(task, self.options) for task in tasks}

    def on_step_end(self, *_: object, **__: object) -> None:
        if self.every is not None and self.step % self.every == 0:
            self.trainer.log(self._run())

    def on_evaluate(self, *_: object, metrics: Any = None, **__: object) -> None:
        if self.every is None:
            found = self._run()
            self.trainer.log(dict(found))
            metrics.update(found)  # so that one of them can choose the best checkpoint

    def _run(self) -> dict[str, float]:
        """The same numbers in all processes: they may choose the best checkpoint."""
        from ebft.evaluate.subject import LoadedSubject
        from ebft.evaluate.tasks import run_task

        logs: dict[str, float] = {}
        trainer, options, name = self.trainer, self.options, f"step {self.step}"
        tokenizer, folder = trainer.processing_class, trainer.output / "eval_tasks" / f"step-{self.step:06d}"
        for task in options.tasks if processes.rank() == 0 else ():
            start = time.perf_counter()
            with trainer.computing() as model:
                subject = LoadedSubject(model, tokenizer, trainer.features, name, options.batch_size)
                found = run_task(task, options, subject, folder, self.sets[task])
            points = {f"cfm_at_{point['length']}": point for point in found.get("profile", ())}
            for metric, entry in (found["metrics"] | points).items():
                key = f"eval_{task}_{metric}".replace(" ", "_")
                logs[key] = math.nan if entry["value"] is None else entry["value"]
                if entry["standard_error"] is not None:
                    logs[f"{key}_se"] = entry["standard_error"]
            logs[f"eval_{task}_runtime"] = time.perf_counter() - start
        return processes.from_first(logs)


class Progress(Callback):
    """How far training is, as a bar or once a minute in a log file, and a short line for every log entry."""

    def on_train_begin(self, *_: object, **__: object) -> None:
        bar = progress("training", self.trainer.state.max_steps, self.step)
        self.open = ExitStack()
        is_shown = processes.rank() == 0 and not self.trainer.args.disable_tqdm
        self.advance = self.open.enter_context(bar) if is_shown else bool

    def on_step_end(self, *_: object, **__: object) -> None:
        self.advance(1)

    def on_train_end(self, *_: object, **__: object) -> None:
        self.open.close()

    def on_log(self, *_: object, logs: Any = None, **__: object) -> None:
        found = {short: logs[name] for name, short in self.trainer.shown.items() if name in logs}
        validated = {k[5:]: v for k, v in logs.items() if k.startswith("eval_") and "eval_cfm" in logs}
        found |= {k: v for k, v in validated.items() if not k.endswith(("_se", "runtime", "reward"))}  # it is the proxy
        if found and processes.rank() == 0:
            where = f"step {self.step:>{len(str(self.trainer.state.max_steps))}}{', validation' * bool(validated)}: "
            logger.info(where + ", ".join(f"{k} {float(v):.4g}" for k, v in found.items()))


class Preemption(Callback):
    """SIGTERM and SIGUSR1, with which schedulers give notice, and Ctrl-C: finish the step, save a checkpoint, leave. It
    listens before there is a trainer; as the last callback of one it ends the run after the checkpoint it asked for.

    One notice to one process is enough; all processes of a run leave after the same step. Outside of training, while
    data and models are loaded or the finished model is evaluated, there is nothing to save, and a run leaves at once.
    So it does after a second Ctrl-C, and after the first if there are several processes: it ends them one by one.
    """

    received: str | None = None
    at_once = True  # what was done so far is on disk, or not worth keeping
    _leaving = False

    @contextmanager
    def listen(self) -> Iterator[None]:
        # A run in the background may have been told to ignore Ctrl-C.
        interrupts = [signal.SIGINT] if signal.getsignal(signal.SIGINT) is signal.default_int_handler else []
        try:
            with on_notice(self._receive, [*NOTICES, *interrupts]):
                yield
        except Exception as error:
            # Of processes that all get a notice around the first step, some leave at once and others find them gone.
            if self.received is None or not (self.at_once or processes.lost_another(error)):
                raise
            raise self._stop() from error

    def _receive(self, number: int, frame: FrameType | None) -> None:
        again, self.received = self.received is not None, signal.Signals(number).name
        if number == signal.SIGINT and not (self.at_once or again or processes.count() > 1):
            # Not through a logger, which may be in the middle of another message.
            os.write(2, b"\nsaving a checkpoint after this step; Ctrl-C again stops at once\n")
        elif number == signal.SIGINT or self.at_once:
            raise self._stop()

    def _stop(self) -> BaseException:
        is_interrupt = self.received == "SIGINT"
        return KeyboardInterrupt() if is_interrupt else Preempted(self.received or "a notice to another process")

    def on_train_begin(self, *_: object, **__: object) -> None:
        self.at_once = False

    def on_step_end(self, *_: object, **__: object) -> None:
        told = torch.tensor(float(self.received is not None), device=self.trainer.args.device)
        if processes.sum_over_processes({"told": told})["told"]:  # any of them
            self._leaving = self.trainer.control.should_save = True

    def on_save(self, *_: object, **__: object) -> None:
        if self._leaving:
            processes.barrier()  # the first one has marked the checkpoint
            raise self._stop()

    def on_train_end(self, *_: object, **__: object) -> None:
        self.at_once = (self.trainer.checkpoint / run_folder.MARK).exists()
