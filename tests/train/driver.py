"""Runs `ebft` and kills it, as `kill -9` would, at the moment that KILL_AT names. Started by test_resume.py."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import torch

from ebft.cli import main
from ebft.train import checkpoints
from ebft.train.trainer import EBFTTrainer


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


kind, _, where = os.environ.get("KILL_AT", "").partition(":")

if kind == "step":  # in the middle of an iteration, after the rollouts
    original_step = EBFTTrainer.training_step

    def training_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == int(where):
            die()
        return original_step(self, *args, **kwargs)

    EBFTTrainer.training_step = training_step  # type: ignore[method-assign]

if kind == "write":  # half-way through a file of a checkpoint
    original_save = torch.save

    def save(value: Any, file: Any, *args: Any, **kwargs: Any) -> Any:
        original_save(value, file, *args, **kwargs)
        if str(file).endswith(where):
            with open(file, "r+b") as written:
                written.truncate(os.path.getsize(file) // 2)
            die()

    torch.save = save

if kind == "mark":  # everything is written but the mark
    original_mark = checkpoints.mark_complete

    def mark_complete(checkpoint: Any) -> None:
        if checkpoint.name == where:
            die()
        original_mark(checkpoint)

    checkpoints.mark_complete = mark_complete

if kind == "interrupt":  # Ctrl-C
    original_step = EBFTTrainer.training_step

    def interrupted_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == int(where):
            raise KeyboardInterrupt
        return original_step(self, *args, **kwargs)

    EBFTTrainer.training_step = interrupted_step  # type: ignore[method-assign]

if kind == "full":  # no room left while a checkpoint is written
    original_save = torch.save

    def save_until_full(value: Any, file: Any, *args: Any, **kwargs: Any) -> Any:
        if str(file).endswith(where):
            raise OSError(28, "No space left on device", str(file))
        return original_save(value, file, *args, **kwargs)

    torch.save = save_until_full

sys.exit(main(sys.argv[1:]))
