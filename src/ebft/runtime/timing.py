"""Seconds per phase, and numbers that arrive later, without making the host wait for a GPU."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

Mark = Any  # seconds of the host, or an event of a GPU


class Clock:
    """Adds up the time of phases. On a GPU events mark them, and are read only when somebody asks."""

    def __init__(self, device: torch.device) -> None:
        self.on_gpu = device.type == "cuda"
        self._phases: list[tuple[str, Mark, Mark]] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = self.mark()
        yield
        self.add(name, start)

    def mark(self) -> Mark:
        if not self.on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def add(self, name: str, start: Mark) -> None:
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


class Arriving:
    """A number that may be on its way from a GPU."""

    def __init__(self, value: Tensor) -> None:
        self._value = value.detach().to("cpu", non_blocking=True)  # into pinned memory, by torch itself
        self._event = torch.cuda.Event() if value.is_cuda else None
        if self._event is not None:
            self._event.record()

    def is_here(self) -> bool:
        return self._event is None or self._event.query()

    def wait(self) -> float:
        if self._event is not None:
            self._event.synchronize()
        return float(self._value)


class DeferredChecks:
    """Checks that raise an error, made once their numbers have arrived; on a CPU, at once."""

    def __init__(self) -> None:
        self._pending: deque[tuple[Arriving, Callable[[float], None]]] = deque()

    def add(self, value: Tensor, check: Callable[[float], None]) -> None:
        self._pending.append((Arriving(value), check))
        self.run()

    def run(self, wait: bool = False) -> None:
        """Make the checks whose numbers are here; with `wait`, all of them."""
        while self._pending and (wait or self._pending[0][0].is_here()):
            number, check = self._pending.popleft()
            check(number.wait())
