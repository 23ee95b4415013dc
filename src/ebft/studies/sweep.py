"""`ebft sweep`: all points of a grid, and a table of what came of them.

Started again, it skips points that are finished and goes on with the others; when nothing is left to do, it shows the
table.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from ebft.errors import ConfigError, nearest
from ebft.studies import compare, local_launcher, slurm_launcher
from ebft.studies.points import Point
from ebft.train.metric_names import NAMES, with_error

LAUNCHERS = ("local", "slurm")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--config", metavar="RECIPE", help="recipe of the runs; may hold a `sweep:` section")
    add("--set", action="append", default=[], metavar="NAME=V,V", help="values of one setting; may be given often")
    add("--launcher", default="local", help="local: on this machine; slurm: one array job [local]")
    add("--command", default="train", help="what each point runs: train, sft or rlvr [train]")
    add("--jobs", type=int, default=None, help="points at once [local: one for each GPU, one on a CPU; slurm: all]")
    add("--slurm", action="append", default=[], metavar="NAME=VALUE", help="an option of sbatch, such as time=08:00:00")
    add("--dry-run", action="store_true", help="show the points; with slurm, write the job file and do not submit it")


def sweep(points: Sequence[Point], options: Any) -> list[Point]:
    """Run or submit what is left to do; the points that failed."""
    if options.launcher not in LAUNCHERS:
        raise ConfigError(
            f"--launcher {options.launcher} is not one of {', '.join(LAUNCHERS)}{nearest(options.launcher, LAUNCHERS)}"
        )
    if options.jobs is not None and options.jobs < 1:
        raise ConfigError(f"--jobs {options.jobs} must be at least 1")
    if options.slurm and options.launcher != "slurm":
        raise ConfigError("--slurm is for --launcher slurm; leave it out")
    left = [point for point in points if not point.finished]
    print(f"points: {len(points)}, {len(points) - len(left)} of them finished", file=sys.stderr)
    if options.launcher == "local":
        if options.dry_run:
            for point in points:
                print(f"{point.name}: {'finished' if point not in left else 'to do'}")
            return []
        for point in left:
            point.write()
        return local_launcher.run_points(left, options.command, options.jobs, bool(points[0].given.get("use_cpu")))
    if not left:
        return []
    if not options.dry_run and (job := slurm_launcher.still_queued(points[0].folder)):
        raise ConfigError(f"job {job} of this sweep is still in the queue; wait for it, or `scancel {job}`")
    for point in left:
        point.write()
    file = slurm_launcher.write(
        left, slurm_launcher.job_file(left, options.command, slurm_launcher.options_of(options.slurm), options.jobs)
    )
    if options.dry_run:
        print(f"{file}: written and not submitted; `sbatch {file}` does", file=sys.stderr)
    else:
        print(
            f"{file}: submitted as job {slurm_launcher.submit(file)}; the same command shows the table later",
            file=sys.stderr,
        )
    return []


def table(points: Sequence[Point], failed: Sequence[Point] = ()) -> list[tuple[str, ...]]:
    """Settings, state and last validation metrics of every point, with standard errors."""
    names = list(points[0].settings)
    found = [point.results() for point in points]
    metrics = [m for m in NAMES if any(f"eval_{m}" in results.get("after", {}) for results in found)]
    rows: list[tuple[str, ...]] = [(*names, "state", *(NAMES[m] for m in metrics))]
    for point, results in zip(points, found, strict=True):
        state = "finished" if point.finished else "failed" if point in failed else "not finished"
        after = results.get("after", {}) if point.finished else {}
        values = (with_error(after.get(f"eval_{m}"), after.get(f"eval_{m}_se")) for m in metrics)
        rows.append((*(str(point.settings[name]) for name in names), state, *values))
    return rows


def compared(points: Sequence[Point]) -> compare.Comparison | None:
    """`ebft compare` of the points that have been evaluated: curves, page and numbers in the sweep's folder."""
    runs = [point for point in points if (point.run / "metrics.jsonl").is_file()]
    runs = [point for point in runs if any(point.results().get(key) for key in ("before", "after"))]
    if not runs:
        return None
    return compare.compare([str(p.run) for p in runs], str(points[0].folder / compare.FOLDER))
