"""Seconds per phase, and checks on numbers, without making the host wait for a GPU."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


class Clock:
    """Adds up the time of phases. On a GPU events mark them, and are read only when somebody asks."""

    def __init__(self, device: torch.device) -> None:
        self.on_gpu = device.type == "cuda"
        self._phases: list[tuple[str, Any, Any]] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = self.mark()
        yield
        self.add(name, start)

    def mark(self) -> Any:
        if not self.on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def add(self, name: str, start: Any) -> None:
        """The time since `start` belongs to `name`."""
        self._phases.append((name, start, self.mark()))

    def read(self) -> dict[str, float]:
        """All seconds since the last reading, by phase. Waits for the GPU."""
        seconds: dict[str, float] = defaultdict(float)
        for name, start, end in self._phases:
            if self.on_gpu:
                end.synchronize()
            seconds[name] += start.elapsed_time(end) / 1000 if self.on_gpu else end - start
        self._phases.clear()
        return dict(seconds)


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
        arrived, event = torch.empty((), dtype=value.dtype, pin_memory=True), torch.cuda.Event()
        arrived.copy_(value, non_blocking=True)
        event.record()
        self._pending.append((arrived, event, check))

    def run(self, wait: bool = False) -> None:
        """Make the checks whose numbers are here; with `wait`, all of them."""
        while self._pending and (wait or self._pending[0][1].query()):
            arrived, event, check = self._pending.popleft()
            event.synchronize()
            check(float(arrived))
