"""Differences of runs on the same validation sequences: of a run from its start, and from the first run's end.

Taken sequence by sequence, a difference is usually known better than the standard errors of the two values suggest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ebft.method.measures import NAMES, Estimate, differences, with_error
from ebft.studies.run_reader import Run
from ebft.studies.same_measurement import compares, settings_that_differ


def change(run: Run) -> dict[str, Estimate]:
    """After training minus before, by metric."""
    values = {name.removeprefix("eval_"): value for name, value in run.change.items() if value is not None}
    return {
        name: Estimate(value, values.get(f"{name}_se", math.nan))
        for name, value in values.items()
        if not name.endswith("_se")
    }


def against(first: Run, run: Run) -> dict[str, Estimate]:
    """`run` minus `first`, both after training, of the metrics that both measured in the same way."""
    if run is first or run.validation is None or first.validation is None:
        return {}
    differ = settings_that_differ(run.validation, first.validation)
    found = differences(run.records, first.records)
    return {metric: difference for metric, difference in found.items() if compares(metric, differ)}


def differences_table(runs: Sequence[Run], metrics: Sequence[str]) -> list[tuple[str, ...]]:
    """Empty if there is nothing to show."""
    first = runs[0]
    columns = [(run, change(run), against(first, run)) for run in runs]
    rows = [
        (run.name, run.method, NAMES.get(metric, metric), _shown(changed.get(metric)), _shown(differs.get(metric)))
        for metric in metrics
        for run, changed, differs in columns
        if metric in changed or metric in differs
    ]
    titles = ("run", "method", "paired difference", "last - first", f"last - last of {first.name}")
    shown = len(titles) if any(differs for _, _, differs in columns) else len(titles) - 1
    return [row[:shown] for row in (titles, *rows)] if rows else []


def without_records(runs: Sequence[Run]) -> list[str]:
    """A note on finished runs that have no differences."""
    names = ", ".join(
        run.name for run in runs if run.finished and run.metrics() and not run.records and not run.problems
    )
    if not names:
        return []
    return [
        f"no paired differences of {names}: not evaluated after training (in Python: `trainer.evaluate()` at the end), "
        "or made before ebft kept what it measured of single sequences"
    ]


def _shown(found: Estimate | None) -> str:
    return "" if found is None else with_error(*found, "+")
