"""`ebft sweep`: runs every point of a grid with a launcher, and makes a table of the results.

Run again, it skips points that are finished and resumes the others; when nothing is left to do, it shows the table.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager

from ebft.method.measures import NAMES, with_error
from ebft.runtime.files import locked
from ebft.studies import compare, launchers
from ebft.studies.launchers import Launcher
from ebft.studies.points import Point
from ebft.studies.run_reader import METRICS_FILE

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--config", metavar="RECIPE", help="recipe of the runs; may hold a `sweep:` section")
    add("--set", action="append", default=[], metavar="NAME=V,V", help="values of one setting; may be given often")
    add("--command", default="train", help="what each point runs: train, sft or rlvr [train]")
    add("--dry-run", action="store_true", help="show the points; with slurm, write the job file and do not submit it")
    launchers.add_arguments(parser, "points")


def preview(points: Sequence[Point], launcher: Launcher) -> list[str]:
    """`--dry-run`: lines to print."""
    _unfinished(points)
    return launcher.preview(points)


def sweep(points: Sequence[Point], launcher: Launcher) -> list[Point] | None:
    """Run or submit the points that are not finished. Returns those that failed; None if they run later."""
    unfinished = _unfinished(points)
    failed = launcher.launch(lambda failed: unfinished)
    return None if failed is None else [point for point in points if point in failed]


def lock(points: Sequence[Point]) -> AbstractContextManager[None]:
    """For as long as something is written into the sweep's folder."""
    return locked(points[0].folder / "sweep.lock")


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
    if not evaluated:
        return None
    return compare.compare(evaluated, str(points[0].folder / compare.FOLDER), replace=True)  # the sweep's own
