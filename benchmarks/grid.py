"""Seconds and memory of an iteration for all horizons, samples and contexts of a grid.

Compiling takes longer than measuring, so several settings are warmed up side by side, each in a process of its own.
Then all wait for each other, and are timed one after the other. Started again with the same file, it resumes.

    python benchmarks/grid.py --size smollm2-135m --device cuda --json FILE
    python benchmarks/grid.py --show FILE          # the tables of docs/speed.md
"""

from __future__ import annotations

import itertools
import multiprocessing as mp
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty
from threading import BrokenBarrierError
from typing import Any

import torch

import step
from command_line import Parser, positive
from ebft.runtime.files import write_json
from provenance import command_and_date, device_name
from shapes import SIZES
from step_settings import parse_arguments

HORIZONS, SAMPLES, CONTEXTS = (4, 8, 16, 32, 64), (4, 8, 16), (512, 1024, 2048, 4096)
STRIDE, SAMPLES_AT_STRIDE, CONTEXT_AT_STRIDE = 8, 4, 1024  # where completions overlap, horizons alone vary

Point = dict[str, int]


def settings_of_grid(
    contexts: Sequence[int] = CONTEXTS, samples: Sequence[int] = SAMPLES, horizons: Sequence[int] = HORIZONS
) -> list[Point]:
    """Every combination with the stride equal to the horizon, and every horizon at a fixed stride."""
    found = [
        {"context_length": T, "samples": n, "horizon": G, "stride": G}
        for T, n, G in itertools.product(contexts, samples, horizons)
    ]
    if CONTEXT_AT_STRIDE not in contexts or SAMPLES_AT_STRIDE not in samples:
        return found
    fixed = {"context_length": CONTEXT_AT_STRIDE, "samples": SAMPLES_AT_STRIDE, "stride": STRIDE}
    return found + [{**fixed, "horizon": G} for G in horizons if G != STRIDE]


def packed_tokens(point: Point) -> int:
    anchors = (point["context_length"] - point["horizon"]) // point["stride"]
    return point["context_length"] + anchors * point["samples"] * point["horizon"]


def groups_of(points: list[Point], at_once: int) -> list[list[Point]]:
    """Groups of about the same total size: all of a group are in memory together."""
    groups: list[list[Point]] = [[] for _ in range(-(-len(points) // at_once))]
    by_size = sorted(points, key=packed_tokens, reverse=True)
    for start in range(0, len(by_size), len(groups) or 1):
        for group, point in zip(groups, by_size[start:], strict=False):
            group.append(point)
        groups.reverse()  # the group with the smallest of this round is first in the next
    return groups


def measure(arguments: list[str], barrier: Any, lock: Any, results: Any) -> None:
    """step.py's result for these arguments, timed when all have warmed up and it is this process's turn."""
    waited = False

    @contextmanager
    def turn() -> Iterator[None]:
        nonlocal waited
        waited = True
        barrier.wait()
        with lock:
            yield

    try:
        report = step.measure(parse_arguments(arguments)[0], arguments, turn)
    except BrokenBarrierError:
        report = {"error": "the process of another setting ended too early"}
    except Exception as error:
        report = {"error": "out of memory" if isinstance(error, torch.OutOfMemoryError) else repr(error)}
        if not waited:
            with suppress(BrokenBarrierError):
                barrier.wait()
    results.put((arguments, report))


def measure_together(commands: list[list[str]]) -> list[dict[str, Any]]:
    """The result of each, or the error that prevented it."""
    context = mp.get_context("spawn")
    barrier, lock, results = context.Barrier(len(commands)), context.Lock(), context.Queue()
    processes = [context.Process(target=measure, args=(command, barrier, lock, results)) for command in commands]
    for process in processes:
        process.start()
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    while len(found) < len(commands) and (any(process.is_alive() for process in processes) or not results.empty()):
        with suppress(Empty):
            arguments, report = results.get(timeout=1)
            found[tuple(arguments)] = report
        if any(process.exitcode for process in processes):  # killed, usually for lack of memory: the rest must not wait
            barrier.abort()
    for process in processes:
        process.join()
    return [
        found.get(tuple(command), {"error": f"its process ended with code {process.exitcode}"})
        for command, process in zip(commands, processes, strict=True)
    ]


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
        "commit": report["commit"],
    }


def main() -> int:
    parser = Parser(description=__doc__)
    add = parser.add_argument
    add("--size", choices=SIZES, default="smollm2-135m")
    add("--device", choices=("cpu", "cuda"), default="cuda")
    add("--sequences", type=positive, default=4)
    add("--micro-batch", type=positive, default=1)
    add("--repeats", type=positive, default=5)
    add("--contexts", type=positive, nargs="+", default=CONTEXTS, help="T")
    add("--samples", type=positive, nargs="+", default=SAMPLES, help="n")
    add("--horizons", type=positive, nargs="+", default=HORIZONS, help="G")
    add("--at-once", type=positive, default=8, help="settings warmed up side by side; all must fit in memory")
    add("--json", type=Path, metavar="FILE", help="written after every group; what it holds is not measured again")
    add("--show", type=Path, metavar="FILE", help="measure nothing, print the tables of this file")
    args = parser.parse_args()
    if args.show is not None:
        print(tables(read(parser, args.show)))
        return 0
    parser.check_device(args.device)
    parser.check_output(args.json)
    settings = {name: getattr(args, name) for name in ("size", "device", "sequences", "micro_batch", "repeats")}
    result: dict[str, Any] = {
        **command_and_date("grid.py", sys.argv[1:]),
        "machine": device_name(args.device),
        "versions": {"torch": torch.__version__},
        "settings": settings,
        "rows": [],
    }
    if args.json is not None and args.json.exists():
        before = read(parser, args.json)
        if differing := [name for name, value in settings.items() if before["settings"].get(name, value) != value]:
            parser.error(
                f"--json {args.json} was measured with other settings: {', '.join(differing)}; use another file"
            )
        result["rows"] = [row for row in before["rows"] if "error" not in row]  # failures are measured again
    known = [{name: row[name] for name in ("context_length", "samples", "horizon", "stride")} for row in result["rows"]]
    arguments = ["--skip-released", *_flags(settings)]
    left = [p for p in settings_of_grid(args.contexts, args.samples, args.horizons) if p not in known]
    for group in groups_of(left, args.at_once):
        reports = measure_together([[*arguments, *_flags(point)] for point in group])
        for point, report in zip(group, reports, strict=True):
            result["rows"].append(row_of(point, report))
            print(describe(result["rows"][-1]), flush=True)
        if args.json is not None:
            write_json(args.json, result)
    return 0


def read(parser: Parser, file: Path) -> dict[str, Any]:
    found = parser.read_json(file)
    if not isinstance(found, dict) or "rows" not in found or "settings" not in found:
        parser.error(f"{file} is not a result of grid.py")
    return found


def _flags(settings: dict[str, Any]) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]


def describe(row: dict[str, Any]) -> str:
    where = f"T {row['context_length']:5} G {row['horizon']:3} s {row['stride']:3} n {row['samples']:3}"
    if "error" in row:
        return f"{where}  {row['error']}"
    seconds, tokens = row["seconds"]["iteration"], row["packed_tokens"]
    memory = f"{row['peak_memory_bytes'] / 2**30:7.1f} GiB"
    return f"{where}  {seconds:7.3f} s {memory}  {tokens:8} packed tokens, {1e6 * seconds / tokens:6.2f} us each"


def tables(result: dict[str, Any]) -> str:
    """Markdown: one line per context and number of samples, one column per horizon, of those that were measured."""
    found = {(row["context_length"], row["samples"], row["horizon"], row["stride"]): row for row in result["rows"]}
    contexts, samples, horizons = (sorted({key[place] for key in found}) for place in range(3))

    def line(T: int, n: int, stride: int | None = None) -> str:
        rows = (found.get((T, n, G, stride or G), {"error": "not measured"}) for G in horizons)
        return f"| {T} | {n} | " + " | ".join(map(cell, rows)) + " |"

    def cell(row: dict[str, Any]) -> str:
        if "error" in row:
            return str(row["error"])
        return f"{row['seconds']['iteration']:.2f} s, {row['peak_memory_bytes'] / 2**30:.1f} GiB"

    heading = "| T | n | " + " | ".join(f"G {G}" for G in horizons) + " |\n" + "|---" * (2 + len(horizons)) + "|\n"
    shown = f"s = G:\n\n{heading}" + "\n".join(line(T, n) for T, n in itertools.product(contexts, samples))
    if any(s != G for _, _, G, s in found):
        overlapping = line(CONTEXT_AT_STRIDE, SAMPLES_AT_STRIDE, STRIDE)
        shown += f"\n\ns = {STRIDE}:\n\n{heading}{overlapping}"
    return shown


if __name__ == "__main__":
    sys.exit(main())
