"""Peak memory of an iteration on a CPU, where torch does not count what it allocates."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from iteration_time import Run
from step_settings import Settings


def measure_in_new_process(arguments: Sequence[str]) -> dict[str, int]:
    """`measure_each` by step.py with these arguments, in a process of its own."""
    command = [sys.executable, str(Path(__file__).with_name("step.py")), *arguments, "--measure-memory"]
    # glibc then returns every freed tensor to the system at once: the peak is that of live tensors, as on a GPU,
    # and not of what the allocator happens to keep, which differs from run to run by half.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    output = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(output.splitlines()[-1])


def measure_each(settings: Settings) -> dict[str, int]:
    """`measure_cpu_memory` of every implementation, each in a fork of this process, which has computed nothing yet."""
    context, found = multiprocessing.get_context("fork"), {}
    for name in settings.names:
        result = context.SimpleQueue()
        process = context.Process(target=_measure_into, args=(result, name, settings))
        process.start()
        process.join()
        if process.exitcode:
            sys.exit(process.exitcode)
        found[name] = result.get()
    return found


def _measure_into(result: Any, name: str, settings: Settings) -> None:
    result.put(measure_cpu_memory(name, settings))


def measure_cpu_memory(name: str, settings: Settings) -> int:
    """Peak resident memory of one iteration above the level just before it. Meant for a fresh process.

    A short iteration first loads what is loaded once. The peak that the system reports never falls, so if the
    iteration does not raise it, what is returned is only an upper bound.
    """
    short = replace(settings, context_length=settings.horizon + 2 * settings.stride, sequences=1)
    Run(name, short).iterate()
    run = Run(name, settings)
    gc.collect()
    before, peak_before = resident_bytes(), peak_resident_bytes()
    run.iterate()
    peak = peak_resident_bytes()
    if peak == peak_before:
        print(f"{name}: the iteration stayed below the peak of building the model", file=sys.stderr)
    return max(0, peak - before)  # the kernel counts resident pages in batches: not exact to some hundred kB


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def peak_resident_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
