"""Runs whose numbers are none, or far from all others: stopping or saying so."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from ebft.errors import TrainingDiverged

logger = logging.getLogger(__name__)

# A gradient is told of beyond so many times the lower quartile of those before: steep places of a loss stay far below.
OUTLYING = 1000


def finite(name: str, step: int, advice: str) -> Callable[[float], None]:
    """A check for `DeferredChecks`."""

    def check(value: float) -> None:
        if not math.isfinite(value):
            raise TrainingDiverged(f"the {name} is {value} at step {step}; {advice}")

    return check


class GradientNorms:
    """Says once that a gradient is larger than all others by orders. Clipping hides it: such a step is as short as any,
    in a direction that may mean nothing, and the loss looks plausible for long."""

    def __init__(self) -> None:
        self._before: deque[float] = deque(maxlen=100)
        self._told = False

    def see(self, norm: float, step: int) -> None:
        usual = sorted(self._before)[len(self._before) // 4] if len(self._before) >= 4 else math.inf
        if norm > OUTLYING * usual and not self._told:
            self._told = True
            logger.warning(
                f"the gradient's norm is {norm:.3g} at step {step}, where it is usually about {usual:.3g}; such a step "
                "may be noise. If grad_norm in metrics.jsonl shows more of them, start again before the first"
            )
        if norm > 0:  # there is none where all rewards are equal
            self._before.append(norm)


def check_gradients(trainer: Any, advice: str) -> None:
    """Look at the norm by which the Trainer clips: a gradient can be no number, or noise, where the loss is fine.

    The norm is the same in all processes, so that all of them stop or none does.
    """
    if trainer.accelerator.scaler is not None:
        return  # float16: a gradient too large for it is dropped, and the next one scaled down
    clip, norms = trainer.accelerator.clip_grad_norm_, GradientNorms()

    def clip_and_check(*args: Any, **kwargs: Any) -> Any:
        norm, step = clip(*args, **kwargs), trainer.state.global_step + 1
        if norm is not None:  # DeepSpeed has its own
            is_number = finite("gradient's norm", step, advice)

            def check(value: float) -> None:
                is_number(value)
                norms.see(value, step)

            trainer.deferred_checks.add(torch.as_tensor(norm), check)
        return norm

    trainer.accelerator.clip_grad_norm_ = clip_and_check
