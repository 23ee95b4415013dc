"""Seconds per phase, without making the host wait for a GPU."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class Clock:
    """Adds up the time of phases. On a GPU events mark them, and are read only when somebody asks."""

    def __init__(self, device: torch.device) -> None:
        self.on_gpu = device.type == "cuda"
        self._seconds: dict[str, float] = defaultdict(float)
        self._events: list[tuple[str, Any, Any]] = []

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
        if self.on_gpu:
            self._events.append((name, start, self.mark()))
        else:
            self._seconds[name] += time.perf_counter() - start

    def read(self) -> dict[str, float]:
        """All seconds since the last reading, by phase. Waits for the GPU."""
        for name, start, end in self._events:
            end.synchronize()
            self._seconds[name] += start.elapsed_time(end) / 1000
        found = dict(self._seconds)
        self._events.clear()
        self._seconds.clear()
        return found
