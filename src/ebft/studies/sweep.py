"""`ebft sweep`: runs every point of a grid with a launcher, and makes a table of the results.

Run again, it skips points that are finished and resumes the others; when nothing is left to do, it shows the table.

A new launcher is a class like `LocalLauncher` in a file of its own, and a line in `LAUNCHERS`.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from typing import Protocol

from ebft.errors import ConfigError, nearest
from ebft.studies import compare
from ebft.studies.local_launcher import LocalLauncher
from ebft.studies.points import Point
from ebft.studies.run_reader import METRICS_FILE
from ebft.studies.slurm_launcher import SlurmLauncher
from ebft.train.metric_names import NAMES, with_error

logger = logging.getLogger(__name__)


class Launcher(Protocol):
    """Where the points of a sweep are run."""

    def __init__(self, options: argparse.Namespace) -> None:
        """From the options of the command; raises ConfigError if one is wrong. Nothing is started yet."""

    def preview(self, points: Sequence[Point]) -> list[str]:
        """What `--dry-run` does: start nothing; returns lines to print."""

    def launch(self, unfinished: Sequence[Point]) -> list[Point] | None:
        """Run these points, of which there is at least one. Returns those that failed; None if they run later."""


LAUNCHERS: dict[str, type[Launcher]] = {"local": LocalLauncher, "slurm": SlurmLauncher}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--config", metavar="RECIPE", help="recipe of the runs; may hold a `sweep:` section")
    add("--set", action="append", default=[], metavar="NAME=V,V", help="values of one setting; may be given often")
    add("--launcher", default="local", help=f"{', '.join(LAUNCHERS)}: on this machine, or as one array job [local]")
    add("--command", default="train", help="what each point runs: train, sft or rlvr [train]")
    add("--jobs", type=int, default=None, help="points at once [local: one for each GPU, one on a CPU; slurm: all]")
    add("--slurm", action="append", default=[], metavar="NAME=VALUE", help="an option of sbatch, such as time=08:00:00")
    add("--dry-run", action="store_true", help="show the points; with slurm, write the job file and do not submit it")


def make_launcher(options: argparse.Namespace) -> Launcher:
    if options.launcher not in LAUNCHERS:
        raise ConfigError(
            f"--launcher {options.launcher} is not one of {', '.join(LAUNCHERS)}{nearest(options.launcher, LAUNCHERS)}"
        )
    if options.jobs is not None and options.jobs < 1:
        raise ConfigError(f"--jobs {options.jobs} must be at least 1")
    if options.slurm and options.launcher != "slurm":
        raise ConfigError("--slurm is for --launcher slurm; leave it out")
    return LAUNCHERS[options.launcher](options)


def preview(points: Sequence[Point], launcher: Launcher) -> list[str]:
    """`--dry-run`: lines to print."""
    _unfinished(points)
    return launcher.preview(points)


def sweep(points: Sequence[Point], launcher: Launcher) -> list[Point] | None:
    """Run or submit the points that are not finished. Returns those that failed; None if they run later."""
    unfinished = _unfinished(points)
    return launcher.launch(unfinished) if unfinished else []


def _unfinished(points: Sequence[Point]) -> list[Point]:
    unfinished = [point for point in points if not point.finished]
    logger.info(f"points: {len(points)}, {len(points) - len(unfinished)} of them finished")
    return unfinished


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


def compare_points(points: Sequence[Point]) -> compare.Comparison | None:
    """`ebft compare` of the points that have been evaluated: curves, page and numbers in the sweep's folder."""
    evaluated = [
        str(point.run)
        for point in points
        if (point.run / METRICS_FILE).is_file() and any(point.results().get(key) for key in ("before", "after"))
    ]
    return compare.compare(evaluated, str(points[0].folder / compare.FOLDER)) if evaluated else None
