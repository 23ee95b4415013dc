"""Curves as data, for the page and for pictures: training curves over several axes, and the profile over lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ebft.method.measures import along_training
from ebft.studies.metric_facts import facts
from ebft.studies.report.evidence import Evidence, ReportRow
from ebft.studies.report.study_tables import column_title, summary_of
from ebft.studies.runs import AXES, Run, compares

_MOST_POINTS = 300  # of a curve: more cannot be seen
_NOT_SHOWN = ("epoch", "learning_rate", "num_tokens", "total_flos", "train_loss", "train_runtime", "eval_reward")
_NOT_SHOWN_PREFIXES = ("spent/", "train_", "ebft/seconds_", "reward_counts/")


@dataclass(frozen=True)
class Curve:
    """The mean over seeds; the band spans them, or is one standard error wide where there is only one."""

    name: str
    x: dict[str, list[float]]  # by axis
    y: list[float]
    low: list[float]
    high: list[float]
    dashed: bool = False  # not to be compared with the others


def training_metrics(runs: Sequence[Run]) -> list[str]:
    """Keys of metrics.jsonl with numbers, those of validation first. EBFT's reward on validation is left out: it
    repeats the whitened proxy."""
    found = {
        key
        for run in runs
        for entry in run.entries
        for key, value in entry.items()
        if isinstance(value, int | float)
        and key != "step"
        and not key.endswith(("_se", "runtime", "_per_second"))
        and key not in _NOT_SHOWN
        and not key.startswith(_NOT_SHOWN_PREFIXES)
    }
    first = ["eval_cross_entropy", "eval_answer_cross_entropy", "eval_cfm", "eval_whitened_proxy"]
    validation = [key for key in first if key in found] + sorted(k for k in found - {*first} if k.startswith("eval_"))
    of_interest = ("reward", "loss", "entropy", "grad_norm")
    training = sorted(key for key in found if not key.startswith("eval_"))
    return validation + sorted(training, key=lambda key: key not in of_interest)


def metric_title(key: str) -> str:
    if key == "reward":
        return facts(key).title
    return facts(key.removeprefix("eval_")).title if key.startswith("eval_") else f"{key} (training)"


def training_curves(rows: Sequence[tuple[str, Sequence[Run], list[str]]], key: str) -> list[Curve]:
    """rows: name, the runs of its seeds, and in what their validation differs from that of the others."""
    found = []
    for name, runs, differ in rows:
        by_step = [points for run in runs if (points := along_training(run.entries, key))]
        if not by_step:
            continue
        steps = sorted(set.intersection(*(set(points) for points in by_step)))
        steps = _thinned(steps)
        at = [[points[step] for points in by_step] for step in steps]
        axes = {
            axis: [fmean(entry[column] for entry in entries) for entries in at]
            for axis, (column, _) in AXES.items()
            if all(isinstance(entry.get(column), int | float) for entries in at for entry in entries)
        }
        values = [[float(entry[key]) for entry in entries] for entries in at]
        errors = [float(entries[0].get(f"{key}_se") or 0.0) if len(entries) == 1 else 0.0 for entries in at]
        found.append(
            Curve(
                name,
                axes,
                [fmean(v) for v in values],
                [min(v) - e for v, e in zip(values, errors, strict=True)],
                [max(v) + e for v, e in zip(values, errors, strict=True)],
                key.startswith("eval_") and not compares(key.removeprefix("eval_"), differ),
            )
        )
    return found


def _thinned(steps: list[int]) -> list[int]:
    if len(steps) <= _MOST_POINTS:
        return steps
    every = -(-len(steps) // _MOST_POINTS)
    return sorted({*steps[::every], steps[-1]})


def profile_curves(evidence: Evidence) -> list[Curve]:
    """The feature-matching loss over completion length, on the test data."""
    found = []
    for row in evidence.rows:
        profiles = [p for model in row.models if (p := model.results.get("calibration", {}).get("profile"))]
        profiles = [p for p in profiles if all(point["value"] is not None for point in p)]
        if not profiles:
            continue
        lengths = [float(point["length"]) for point in profiles[0]]
        by_length = [[p[place] for p in profiles] for place in range(len(lengths))]
        values = [[point["value"] for point in points] for points in by_length]
        errors = [(points[0]["standard_error"] or 0.0) if len(points) == 1 else 0.0 for points in by_length]
        low = [min(v) - e for v, e in zip(values, errors, strict=True)]
        high = [max(v) + e for v, e in zip(values, errors, strict=True)]
        found.append(Curve(row.title, {"length": lengths}, [fmean(v) for v in values], low, high))
    return found


@dataclass(frozen=True)
class HeatMap:
    title: str
    x_name: str
    y_name: str
    x: list[Any]
    y: list[Any]
    values: list[list[float | None]]  # [y][x]
    smaller_is_better: bool


def heat_maps(evidence: Evidence, metrics: Sequence[str]) -> list[HeatMap]:
    """Of every method whose grid has two settings: a map of each metric."""
    found = []
    for method in dict.fromkeys(row.method for row in evidence.rows):
        rows = [row for row in evidence.rows if row.method == method]
        varied = [n for n in rows[0].values if len({repr(row.values.get(n)) for row in rows}) > 1]
        if len(varied) != 2:
            continue
        y_name, x_name = varied
        x, y = (list(dict.fromkeys(row.values[name] for row in rows)) for name in (x_name, y_name))
        for metric in metrics:
            by_place = {(row.values[y_name], row.values[x_name]): summary_of(row, metric) for row in rows}
            values = [[None if (s := by_place.get((b, a))) is None else s.value for a in x] for b in y]
            if any(value is not None for line in values for value in line):
                title = f"{method}: {column_title(metric)}"
                found.append(HeatMap(title, x_name, y_name, x, y, values, facts(metric).smaller_is_better))
    return found


def pareto_points(evidence: Evidence, x: str, y: str) -> list[tuple[ReportRow, Any, Any]]:
    """Rows with both metrics: their summaries."""
    pairs = [(row, summary_of(row, x), summary_of(row, y)) for row in evidence.rows]
    return [(row, a, b) for row, a, b in pairs if a is not None and b is not None]
