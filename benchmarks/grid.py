"""Seconds and memory of an iteration for all horizons, samples and contexts of a grid.

Compiling takes longer than measuring, so several settings are warmed up side by side, each in a process of its own.
Then all wait for each other, and are timed one after the other.

    python benchmarks/grid.py --size smollm2-135m --device cuda --json FILE
    python benchmarks/grid.py --show FILE          # the tables of docs/speed.md
"""

from __future__ import annotations

import argparse
import itertools
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
STRIDE, SAMPLES_AT_STRIDE, CONTEXT_AT_STRIDE = 8, 4, 1024  # where completions overlap, horizons alone vary

Point = dict[str, int]


def settings_of_grid() -> list[Point]:
    """Every combination with the stride equal to the horizon, and every horizon at a fixed stride."""
    found = [
        {"context_length": T, "samples": n, "horizon": G, "stride": G}
        for T, n, G in itertools.product(CONTEXTS, SAMPLES, HORIZONS)
    ]
    fixed = {"context_length": CONTEXT_AT_STRIDE, "samples": SAMPLES_AT_STRIDE, "stride": STRIDE}
    return found + [{**fixed, "horizon": G} for G in HORIZONS if G != STRIDE]


def packed_tokens(point: Point) -> int:
    anchors = (point["context_length"] - point["horizon"]) // point["stride"]
    return point["context_length"] + anchors * point["samples"] * point["horizon"]


def groups_of(points: list[Point], at_once: int) -> list[list[Point]]:
    """Groups of about the same total size: all of a group are in memory together."""
    groups: list[list[Point]] = [[] for _ in range(-(-len(points) // at_once))]
    by_size = sorted(points, key=packed_tokens, reverse=True)
    for start in range(0, len(by_size), len(groups)):
        for group, point in zip(groups, by_size[start:], strict=False):
            group.append(point)
        groups.reverse()  # who came last, with the smallest of a round, comes first in the next
    return groups


def measure(arguments: list[str], barrier: Any, lock: Any, results: Any) -> None:
    """step.py's report for these arguments, timed when everybody has warmed up and it is this process's turn."""

    waited = False

    @contextmanager
    def turn() -> Iterator[None]:
        nonlocal waited
        waited = True
        barrier.wait()
        with lock:
            yield

    step.turn_to_measure = turn
    sys.argv = ["step.py", *arguments]
    try:
        report = step.report(step.parse_arguments()[0])
    except Exception as error:
        report = {"error": "out of memory" if isinstance(error, torch.OutOfMemoryError) else repr(error)}
        if not waited:
            barrier.wait()
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


def row_of(point: Point, report: dict[str, Any]) -> dict[str, Any]:
    if "error" in report:
        return {**point, **report}
    return {
        **point,
        "seconds": {phase: value["median"] for phase, value in report["seconds"]["packed"].items()},
        "flops": report["flops"]["iteration"],
        "utilization": report["utilization"]["iteration"],
        "packed_tokens": report["shape"]["packed_tokens"],
        "peak_memory_bytes": report["peak_memory_bytes"]["packed"],
        "date": report["date"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=step.SIZES, default="smollm2-135m")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--micro-batch", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--at-once", type=int, default=8, help="settings warmed up side by side")
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="written after every group; what it holds already is not measured again",
    )
    parser.add_argument("--show", type=Path, metavar="FILE", help="measure nothing, print the tables of this file")
    args = parser.parse_args()
    if args.show is not None:
        print(tables(json.loads(args.show.read_text())))
        return 0
    arguments = ["--size", args.size, "--device", args.device, "--skip-released", "--repeats", str(args.repeats)]
    arguments += ["--sequences", str(args.sequences), "--micro-batch", str(args.micro_batch)]
    result: dict[str, Any] = {
        "command": shlex.join(["python", "benchmarks/grid.py", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": step.device_name(args.device),
        "versions": {"torch": torch.__version__},
        "settings": {"size": args.size, "sequences": args.sequences, "micro_batch": args.micro_batch},
        "rows": [],
    }
    if args.json is not None and args.json.exists():
        result["rows"] = json.loads(args.json.read_text())["rows"]
    known = [{name: row[name] for name in settings_of_grid()[0]} for row in result["rows"]]
    for group in groups_of([point for point in settings_of_grid() if point not in known], args.at_once):
        reports = measure_together([[*arguments, *_flags(point)] for point in group])
        for point, report in zip(group, reports, strict=True):
            result["rows"].append(row_of(point, report))
            print(describe(result["rows"][-1]), flush=True)
        if args.json is not None:
            args.json.parent.mkdir(parents=True, exist_ok=True)
            args.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0


def _flags(point: Point) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in point.items()]


def describe(row: dict[str, Any]) -> str:
    where = f"T {row['context_length']:5} G {row['horizon']:3} s {row['stride']:3} n {row['samples']:3}"
    if "error" in row:
        return f"{where}  {row['error']}"
    seconds, tokens = row["seconds"]["iteration"], row["packed_tokens"]
    memory = f"{row['peak_memory_bytes'] / 2**30:7.1f} GiB"
    return f"{where}  {seconds:7.3f} s {memory}  {tokens:8} packed tokens, {1e6 * seconds / tokens:6.2f} us each"


def tables(result: dict[str, Any]) -> str:
    """Markdown: one line per context and number of samples, one column per horizon."""
    found = {(row["context_length"], row["samples"], row["horizon"], row["stride"]): row for row in result["rows"]}

    def cell(T: int, n: int, G: int, s: int) -> str:
        row = found.get((T, n, G, s), {"error": "not measured"})
        if "error" in row:
            return str(row["error"])
        return f"{row['seconds']['iteration']:.2f} s, {row['peak_memory_bytes'] / 2**30:.1f} GiB"

    heading = "| T | n | " + " | ".join(f"G {G}" for G in HORIZONS) + " |\n" + "|---" * (2 + len(HORIZONS)) + "|\n"
    lines = [
        f"| {T} | {n} | " + " | ".join(cell(T, n, G, G) for G in HORIZONS) + " |"
        for T, n in itertools.product(CONTEXTS, SAMPLES)
    ]
    T, n = CONTEXT_AT_STRIDE, SAMPLES_AT_STRIDE
    overlapping = f"| {T} | {n} | " + " | ".join(cell(T, n, G, STRIDE) for G in HORIZONS) + " |"
    return f"s = G:\n\n{heading}" + "\n".join(lines) + f"\n\ns = {STRIDE}:\n\n{heading}{overlapping}"


if __name__ == "__main__":
    sys.exit(main())
