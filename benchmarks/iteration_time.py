"""Seconds of an iteration and of its phases, after warm-up, and on a GPU the peak memory."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from ebft.runtime.timing import Clock
from packed_implementation import PackedImplementation
from packed_work import Work, work_of
from reference_implementation import ReferenceImplementation
from step_settings import SEED, Settings
from trained_model import Training, contexts

PHASES = ("rollout", "features", "rewards", "update", "optimizer")

Turn = Callable[[], AbstractContextManager[None]]


class Implementation(Protocol):
    """`sequences` is what an implementation's own rollout returns; advantages are [b, B, n] in all."""

    def rollout(self, contexts: Tensor) -> Any: ...
    def features(self, sequences: Any) -> tuple[Tensor, Tensor]: ...
    def advantages(self, sequences: Any, generated: Tensor, truth: Tensor) -> Tensor: ...
    def update(self, sequences: Any, advantages: Tensor) -> Tensor: ...


IMPLEMENTATIONS: dict[str, Callable[[Training, Settings], Implementation]] = {
    "packed": lambda training, settings: PackedImplementation(training.model, settings),
    "untreed": lambda training, settings: PackedImplementation(training.model, settings, trees=False),
    "released": lambda training, settings: ReferenceImplementation(training.model, settings),
}


class Run:
    """A model in training under one of the implementations."""

    def __init__(self, name: str, settings: Settings) -> None:
        self.device = settings.device
        self.training = Training(settings)
        self.implementation = IMPLEMENTATIONS[name](self.training, settings)
        self.contexts = contexts(settings)

    def iterate(self) -> dict[str, float]:
        """Seconds of each phase and of the iteration. On a GPU the host does not wait between the phases."""
        clock = Clock(torch.device(self.device))
        seconds = seconds_of(lambda: self._run_phases(clock), self.device)
        return clock.read() | {"iteration": seconds}

    def _run_phases(self, clock: Clock) -> None:
        with clock.phase("rollout"):
            sequences = self.implementation.rollout(self.contexts)
        with clock.phase("features"):
            generated, truth = self.implementation.features(sequences)
        with clock.phase("rewards"):
            advantages = self.implementation.advantages(sequences, generated, truth)
        with clock.phase("update"):
            self.implementation.update(sequences, advantages)
        with clock.phase("optimizer"):
            self.training.step()


@dataclass
class Measured:
    runs: list[dict[str, float]]  # seconds by phase, one entry per repeat
    matrix_rate: float = 0.0
    work: Work | None = None  # of the last iteration
    peak_bytes: int = 0  # CUDA only: everything that was allocated, weights and optimiser included
    warmup_seconds: float = 0.0


def measure_time(names: Sequence[str], settings: Settings, turn: Turn) -> dict[str, Measured]:
    """On a CPU the implementations take turns, so that a machine that slows down slows both; on a GPU one is
    measured after the other. `turn` is entered around everything that is timed."""
    groups = [names] if settings.device == "cpu" else [[name] for name in names]
    measured: dict[str, Measured] = {}
    for group in groups:
        if group == ["released"]:  # nothing to compile there
            settings = replace(settings, repeats=settings.released_repeats, warmup=min(settings.warmup, 1))
        measured |= _measure_together(group, settings, turn)
        free_memory(settings.device)
    return measured


def _measure_together(names: Sequence[str], settings: Settings, turn: Turn) -> dict[str, Measured]:
    measured = {name: Measured([]) for name in names}
    runs = {name: Run(name, settings) for name in names}
    on_gpu = settings.device == "cuda"
    torch.manual_seed(SEED)
    for _ in range(settings.warmup):
        for name, run in runs.items():
            measured[name].warmup_seconds += run.iterate()["iteration"]
    with turn():
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        for _ in range(settings.repeats):
            for name, run in runs.items():
                measured[name].runs.append(run.iterate())
        if on_gpu:  # where only one is measured at a time
            measured[names[0]].peak_bytes = torch.cuda.max_memory_allocated()
        for name, run in runs.items():
            if isinstance(run.implementation, PackedImplementation):
                measured[name].work = work_of(run.implementation)
        measured[names[0]].matrix_rate = matrix_rate(settings.device, settings.torch_dtype)
    return measured


def matrix_rate(device: str, dtype: torch.dtype) -> float:
    """Floating-point operations a second of one large product of random numbers, measured now."""
    size, repeats = (8192, 20) if device == "cuda" else (2048, 4)  # half a second each on one core
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    times = [seconds_of(lambda: a @ b, device) for _ in range(repeats + 3)]
    return 2 * size**3 / statistics.median(times[3:])


def summarize(runs: list[dict[str, float]]) -> dict[str, dict[str, Any]]:
    """Median, minimum, maximum and all repeats of every phase and of the iteration as a whole."""
    columns = {phase: [run[phase] for run in runs] for phase in runs[0]}
    return {
        phase: {"median": statistics.median(values), "min": min(values), "max": max(values), "runs": values}
        for phase, values in columns.items()
    }


def seconds_of(function: Callable[[], object], device: str) -> float:
    """By the host's clock, until the device has finished."""
    synchronize(device)
    start = time.perf_counter()
    function()
    synchronize(device)
    return time.perf_counter() - start


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def free_memory(device: str) -> None:
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
