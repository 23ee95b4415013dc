"""Runs whose numbers are none: what is known to cause them, and stopping before such a model is used or saved."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from ebft.errors import TrainingDiverged


def avoid_broken_kernels() -> None:
    """Of torch's kernels for attention, all but cuDNN's.

    With a mask and lengths of 64 beyond a multiple of 128 its backward pass is reported to return NaN for queries with
    very low scores (torch from 2.11 on, on Hopper; https://github.com/pytorch/pytorch/issues/196678). A run of GRPO on
    padded prompts had a gradient of NaN beside a finite loss on such a machine. That this was the cause was not shown.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)


def finite(name: str, step: int, advice: str) -> Callable[[float], None]:
    """A check for `DeferredChecks`."""

    def check(value: float) -> None:
        if not math.isfinite(value):
            raise TrainingDiverged(f"the {name} is {value} at step {step}; {advice}")

    return check


def check_gradients(trainer: Any, advice: str) -> None:
    """Look at the norm by which the Trainer clips: a gradient can be no number where the loss is one.

    The norm is the same in all processes, so that all of them stop or none does.
    """
    if trainer.accelerator.scaler is not None:
        return  # float16: a gradient too large for it is dropped, and the next one scaled down
    clip = trainer.accelerator.clip_grad_norm_

    def clip_and_check(*args: Any, **kwargs: Any) -> Any:
        norm = clip(*args, **kwargs)
        if norm is not None:  # DeepSpeed has its own
            trainer.deferred_checks.add(
                torch.as_tensor(norm), finite("gradient's norm", trainer.state.global_step + 1, advice)
            )
        return norm

    trainer.accelerator.clip_grad_norm_ = clip_and_check
