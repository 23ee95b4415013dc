"""Which kernels an iteration runs on a GPU: for each phase how long it takes, how long the GPU works, and on what.

Takes the options of step.py; `--warmup` iterations come first.

    python benchmarks/where_time_goes.py --size qwen2.5-1.5b --device cuda > FILE
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from ebft.iteration import packings
from iteration_time import Run
from provenance import command_and_date, device_name
from step_settings import parse_arguments

SHOWN = 40  # kernels of a phase


def main() -> None:
    settings, _ = parse_arguments(sys.argv[1:], __doc__)
    if settings.device != "cuda":
        sys.exit("where_time_goes.py: only a GPU has kernels; use --device cuda")
    run = Run("packed", settings)
    for _ in range(settings.warmup):
        run.iterate()
    for name, value in command_and_date("where_time_goes.py", sys.argv[1:]).items():
        print(f"{name}: {value}")
    print(f"device: {device_name('cuda')}")
    implementation = run.implementation
    rolled = show("rollout", lambda: implementation.rollout(run.contexts))
    given = (rolled.layout, rolled.contexts, rolled.rollouts, rolled.method)
    show("trees", lambda: packings(*given))
    generated, truth = show("features", lambda: implementation.features(rolled))
    advantages = show("rewards", lambda: implementation.advantages(rolled, generated, truth))
    show("update", lambda: implementation.update(rolled, advantages))
    show("optimizer", run.training.step)


def show(phase: str, function: Callable[[], Any]) -> Any:
    """Runs it twice: timed, then profiled."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    result = function()
    torch.cuda.synchronize()
    wall = time.perf_counter() - begin
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        function()
        torch.cuda.synchronize()
    kernels = [event for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    took: dict[str, list[float]] = defaultdict(list)
    for kernel in kernels:
        took[kernel.name].append(kernel.time_range.elapsed_us() / 1e3)
    spans = [(kernel.time_range.start, kernel.time_range.end) for kernel in kernels]
    print(f"\n{phase}: {wall * 1e3:.1f} ms, the GPU works {busy(spans) / 1e3:.1f} ms, {len(kernels)} kernels")
    longest = sorted(took.items(), key=lambda item: -sum(item[1]))
    for name, times in longest[:SHOWN]:
        print(f"{sum(times):9.2f} ms {len(times):6d} x {name[:110]}")
    if rest := [time for _, times in longest[SHOWN:] for time in times]:
        print(f"{sum(rest):9.2f} ms {len(rest):6d} x of {len(longest) - SHOWN} other kinds")
    return result


def busy(spans: list[tuple[float, float]]) -> float:
    """How long at least one of the spans lasts."""
    total, last = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, last))
        last = max(last, end)
    return total


if __name__ == "__main__":
    main()
