"""Seconds per phase, without making the host wait for a GPU."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

Mark = Any  # seconds of the host, or an event of a GPU


class Clock:
    """Adds up the time of phases. On a GPU events mark them."""

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
