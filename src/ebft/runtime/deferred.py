"""Checks on numbers that a GPU has not computed yet, without making the host wait for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class DeferredChecks:
    """Checks on numbers that may still be under way on a GPU, made once they have arrived, at the latest on demand.

    A check raises an error. On a CPU it is made at once.
    """

    def __init__(self) -> None:
        self._pending: deque[tuple[Tensor, Any, Callable[[float], None]]] = deque()

    def add(self, value: Tensor, check: Callable[[float], None]) -> None:
        value = value.detach()
        if not value.is_cuda:
            return check(float(value))
        arrived = torch.empty((), dtype=value.dtype, pin_memory=True)
        arrived.copy_(value, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        self._pending.append((arrived, event, check))

    def run(self, wait: bool = False) -> None:
        """Make the checks whose numbers are here; with `wait`, all of them."""
        while self._pending and (wait or self._pending[0][1].query()):
            arrived, event, check = self._pending.popleft()
            event.synchronize()
            check(float(arrived))
