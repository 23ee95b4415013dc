"""Seconds and memory of an iteration for other horizons, samples and contexts: one setting varied at a time.

Compiling takes longer than measuring, so several settings are warmed up side by side, each in a process of its own.
Then all wait for each other, and are timed one after the other.

    python benchmarks/grid.py --size smollm2-135m --device cuda --json FILE
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import step

HORIZONS, SAMPLES, CONTEXTS = (4, 8, 16, 32, 64), (4, 8, 16), (512, 1024, 2048, 4096)
BASE = {"horizon": 8, "samples": 4, "context_length": 1024}


def settings_of_grid() -> list[dict[str, int]]:
    """The base, and every other value of each setting. The stride is the horizon: completions do not overlap."""
    found = [BASE]
    for name, values in (("horizon", HORIZONS), ("samples", SAMPLES), ("context_length", CONTEXTS)):
        found += [{**BASE, name: value} for value in values if value != BASE[name]]
    return found


def measure(arguments: list[str], barrier: Any, lock: Any, results: Any) -> None:
    """step.py's report for these arguments, timed when everybody has warmed up and it is this process's turn."""

    @contextmanager
    def turn() -> Iterator[None]:
        barrier.wait()
        with lock:
            yield

    step.turn_to_measure = turn
    sys.argv = ["step.py", *arguments]
    try:
        report = step.report(step.parse_arguments()[0])
    except torch.OutOfMemoryError:
        barrier.wait()
        report = {"error": "out of memory"}
    results.put((arguments, report))


def measure_together(commands: list[list[str]]) -> list[dict[str, Any]]:
    context = mp.get_context("spawn")
    barrier, lock, results = context.Barrier(len(commands)), context.Lock(), context.Queue()
    processes = [context.Process(target=measure, args=(command, barrier, lock, results)) for command in commands]
    for process in processes:
        process.start()
    found = [results.get() for _ in commands]
    for process in processes:
        process.join()
    return [next(report for arguments, report in found if arguments == command) for command in commands]


def row_of(point: dict[str, int], report: dict[str, Any]) -> dict[str, Any]:
    if "error" in report:
        return {**point, **report}
    return {
        **point,
        "seconds": {phase: value["median"] for phase, value in report["seconds"]["packed"].items()},
        "flops": report["flops"]["iteration"],
        "utilization": report["utilization"]["iteration"],
        "packed_tokens": report["shape"]["packed_tokens"],
        "peak_memory_bytes": report["peak_memory_bytes"]["packed"],
    }


def _flags(point: dict[str, int]) -> list[str]:
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in point.items()]
    return [*flags, f"--stride={point['horizon']}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=step.SIZES, default="smollm2-135m")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--micro-batch", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--at-once", type=int, default=4, help="settings warmed up side by side")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    arguments = ["--size", args.size, "--device", args.device, "--skip-released", "--repeats", str(args.repeats)]
    arguments += ["--sequences", str(args.sequences), "--micro-batch", str(args.micro_batch)]
    points, rows = settings_of_grid(), []
    for start in range(0, len(points), args.at_once):
        group = points[start : start + args.at_once]
        reports = measure_together([[*arguments, *_flags(point)] for point in group])
        rows += [row_of(point, report) for point, report in zip(group, reports, strict=True)]
    result = {
        "command": shlex.join(["python", "benchmarks/grid.py", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": step.device_name(args.device),
        "versions": {"torch": torch.__version__},
        "settings": {"size": args.size, "sequences": args.sequences, "micro_batch": args.micro_batch},
        "rows": rows,
    }
    for row in rows:
        print(describe(row))
    if args.json is not None:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0


def describe(row: dict[str, Any]) -> str:
    where = f"T {row['context_length']:5} G {row['horizon']:3} n {row['samples']:3}"
    if "error" in row:
        return f"{where}  {row['error']}"
    seconds, tokens = row["seconds"]["iteration"], row["packed_tokens"]
    memory = f"{row['peak_memory_bytes'] / 2**30:7.1f} GiB"
    return f"{where}  {seconds:7.3f} s {memory}  {tokens:8} packed tokens, {1e6 * seconds / tokens:6.2f} us each"


if __name__ == "__main__":
    sys.exit(main())
