"""SIGTERM and SIGUSR1, with which schedulers give notice, and Ctrl-C: finish the step, save a checkpoint, leave.

One notice to one process is enough; all processes of a run leave after the same step. Outside of training, while data
and models are loaded or the finished model is evaluated, there is nothing to save, and a run leaves at once. So it does
after a second Ctrl-C, and after the first if there are several processes: it ends them one by one.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from transformers import Trainer

from ebft.errors import Preempted
from ebft.runtime import processes
from ebft.runtime.launch import NOTICES, not_mistaken, on_notice
from ebft.train import run_folder
from ebft.train.callbacks import Callback

logger = logging.getLogger(__name__)


class Preemption(Callback):
    """As the last callback of a trainer, it ends the run after the checkpoint that it has asked for."""

    received: str | None = None
    at_once = True  # what was done so far is on disk, or not worth keeping
    _leaving = False

    def __init__(self) -> None:
        super().__init__(None)  # it listens before there is a trainer

    @contextmanager
    def listen(self) -> Iterator[None]:
        # A run in the background may have been told to ignore Ctrl-C.
        interrupts = [signal.SIGINT] if signal.getsignal(signal.SIGINT) is signal.default_int_handler else []
        with on_notice(self._receive, [*NOTICES, *interrupts]), not_mistaken(self._meant_by):
            yield

    def _receive(self, number: int, frame: FrameType | None) -> None:
        again, self.received = self.received is not None, signal.Signals(number).name
        if number == signal.SIGINT and not (self.at_once or again or processes.count() > 1):
            # Not through a logger, which may be in the middle of another message.
            os.write(2, b"\nsaving a checkpoint after this step; Ctrl-C again stops at once\n")
        elif number == signal.SIGINT or self.at_once:
            raise self._stop()

    def _meant_by(self, error: Exception) -> BaseException | None:
        # Of processes that all get a notice around the first step, some may leave at once and others find them gone.
        stopping = self.received is not None and (self.at_once or processes.lost_another(error))
        return self._stop() if stopping else None

    def _stop(self) -> BaseException:
        if self.received == "SIGINT":
            return KeyboardInterrupt()
        return Preempted(self.received or "a notice to another process")

    def attach(self, trainer: Trainer) -> None:
        self.trainer = trainer
        trainer.add_callback(self)

    def on_train_begin(self, *_: object, train_dataloader: Any = None, **__: object) -> None:
        self.at_once = False
        self._flag = processes.SharedFlag(self.trainer.args.device)
        loader = getattr(train_dataloader, "base_dataloader", train_dataloader)  # inside accelerate's
        if getattr(loader, "num_workers", 0):
            loader.worker_init_fn = _hear_nothing

    def on_step_end(self, *_: object, **__: object) -> None:
        if self._flag.exchange(self.received is not None):
            if not self._leaving and self.trainer.state.is_world_process_zero:
                who = self.received or "another process has been told to stop"
                logger.info(f"{who}: saving a checkpoint after step {self.step}")
            self._leaving = self.trainer.control.should_save = True
            self.trainer.deferred_checks.run(wait=True)  # as before every checkpoint

    def on_save(self, *_: object, **__: object) -> None:
        if self._leaving:
            processes.barrier()  # the first one has marked the checkpoint
            raise self._stop()

    def on_train_end(self, *_: object, **__: object) -> None:
        self.at_once = (self.checkpoint / run_folder.MARK).exists()
        if self.at_once and self.received is not None and processes.count() == 1:
            raise self._stop()


def _hear_nothing(worker: int) -> None:
    """In processes that load data: a signal to all processes of a job is not for them."""
    for number in (*NOTICES, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
