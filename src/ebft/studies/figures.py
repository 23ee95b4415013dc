"""The figures of studies and comparisons: training curves over an axis, the profile over lengths, cross-entropy against
feature-matching loss, and maps over two settings."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ebft.evaluate.tables import over_lengths
from ebft.method.measures import NAMES, along_training
from ebft.runtime.messages import plot_label
from ebft.studies.evidence import Evidence
from ebft.studies.runs import AXES, compares, facts, validated_apart
from ebft.studies.tables import column_title, summary_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

# Told apart also by people who do not see all colours (Okabe and Ito), and readable on white and on black.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#7f7f7f", "#6b4c9a", "#a6761d")
_MOST_POINTS = 300  # of a curve: more cannot be seen
_OF_TRAINING = ("loss", "reward", "entropy", "kl", "grad_norm", "ebft/cfm", "ebft/distinct")
_NO_METRICS = ("reward", "samples_per_second", "steps_per_second")  # the first repeats the proxy


class Curve(NamedTuple):
    title: str  # of its row
    points: DataFrame  # x, y, and the band from low to high
    is_dashed: bool = False  # not to be compared with the others


def colors_of(evidence: Evidence) -> dict[str, str]:
    return dict(zip((row.title for row in evidence.rows), itertools.cycle(COLORS), strict=False))


def draw(evidence: Evidence, metrics: Sequence[str]) -> dict[str, Figure]:
    """All figures of a report, by the names of their files."""
    drawn = {f"training-{axis}": training_figure(evidence, axis) for axis in AXES}
    drawn |= {"profile": _profile_figure(evidence), "pareto": _pareto_figure(evidence)}
    drawn |= {f"map-{n}": figure for n, figure in enumerate(_maps(evidence, metrics), 1)}
    return {name: figure for name, figure in drawn.items() if figure is not None}


def saved(figure: Figure, kind: str) -> bytes:
    """As `svg`, the same for the same figure, or `png`."""
    import matplotlib

    picture = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "ebft"}):
        metadata = {"Date": None} if kind == "svg" else None
        figure.savefig(picture, dpi=120, format=kind, metadata=metadata, transparent=kind == "svg")
    return picture.getvalue()


def training_figure(evidence: Evidence, axis: str) -> Figure | None:
    """A panel for every metric of validation and some of training that were logged over this axis."""
    metrics = {name for model in evidence.models if model.run is not None for name in model.run.metrics()}
    metrics -= {*_NO_METRICS}
    titles = {f"eval_{m}": facts(m).title for m in [*(m for m in NAMES if m in metrics), *sorted(metrics - {*NAMES})]}
    titles |= {key: facts(key).title if key == "reward" else f"{key} (training)" for key in _OF_TRAINING}
    panels: dict[str, list[Curve]] = {}
    for key, title in titles.items():
        for row in evidence.rows:
            runs = [m.run for m in row.models if m.run is not None and (key != "reward" or row.kind == "rlvr")]
            logged = [along_training(run.entries, key) for run in runs]
            fields = (AXES[axis][0], key, f"{key}_se")
            points = [[(step, *map(entry.get, fields)) for step, entry in of_run.items()] for of_run in logged]
            if (found := _over_seeds(points)) is not None:
                differ = validated_apart(runs[0], evidence.reference) if key.startswith("eval_") else []
                curve = Curve(row.title, found, not compares(key.removeprefix("eval_"), differ))
                panels.setdefault(title, []).append(curve)
    if not panels:
        return None
    columns = min(3, len(panels))
    figure, axes = _panels(-(-len(panels) // columns), columns)
    for panel in axes[len(panels) :]:
        panel.set_visible(False)
    for panel, (title, curves) in zip(axes, panels.items(), strict=False):
        _draw(panel, evidence, curves)
        panel.set_title(plot_label(title), fontsize=10)
        panel.set_xlabel(AXES[axis][1])
        panel.legend(fontsize=7)
    return figure


def _over_seeds(seeds: Sequence[Sequence[Sequence[Any]]]) -> DataFrame | None:
    """Of points (at, x, y, error of y) of each seed, those that all have: their mean and span; of a single seed, one
    standard error either way."""
    import pandas as pd

    frames = [pd.DataFrame(points, columns=["at", "x", "y", "error"], dtype=float) for points in seeds if points]
    if not frames:
        return None
    grouped = pd.concat(frames).groupby("at")
    found = grouped.mean()
    error = found.error.fillna(0.0) * (len(frames) == 1)
    found = found.assign(low=grouped.y.min() - error, high=grouped.y.max() + error)
    found = found[grouped.y.count() == len(frames)]
    if found.empty or found.x.isna().any():
        return None
    return found.iloc[np.unique(np.linspace(0, len(found) - 1, _MOST_POINTS).astype(int))]


def _profile_figure(evidence: Evidence) -> Figure | None:
    """The feature-matching loss over completion length, on the test data."""
    curves = []
    for row in evidence.rows:
        profiles = [model.results.get("calibration", {}).get("profile", ()) for model in row.models]
        points = [[(p["length"], p["length"], p["value"], p["standard_error"]) for p in of] for of in profiles]
        if (found := _over_seeds(points)) is not None:
            curves.append(Curve(row.title, found))
    if not curves:
        return None
    figure, (panel,) = _panels()
    _draw(panel, evidence, curves)
    over_lengths(panel, {length for curve in curves for length in curve.points.x})
    panel.set_ylabel("feature-matching loss")
    return figure


def _pareto_figure(evidence: Evidence) -> Figure | None:
    known = []
    figure, (panel,) = _panels()
    for row in evidence.rows:
        x, y = summary_of(row, "calibration cross_entropy"), summary_of(row, "calibration cfm")
        if x is not None and y is not None:
            known.append(row)
            color = colors_of(evidence)[row.title]
            panel.errorbar(x.value, y.value, y.error, x.error, "o", color=color, elinewidth=1, capsize=2)
            at = (x.value, y.value)
            panel.annotate(plot_label(row.title), at, textcoords="offset points", xytext=(5, 5), fontsize=8)
    panel.set(xlabel="cross-entropy, all tokens", ylabel="feature-matching loss")
    panel.margins(0.15)
    panel.grid(alpha=0.3)
    return figure if len(known) > 1 else None


def _maps(evidence: Evidence, metrics: Sequence[str]) -> Iterator[Figure]:
    """Of every method whose grid has two settings: a map of each metric."""
    import pandas as pd

    for method in dict.fromkeys(row.method for row in evidence.rows):
        rows = [row for row in evidence.rows if row.method == method]
        grid = pd.DataFrame([row.values for row in rows]).astype(str)
        grid = grid.loc[:, grid.nunique() > 1]
        for metric in metrics if len(grid.columns) == 2 else ():
            means = [math.nan if (found := summary_of(row, metric)) is None else found.value for row in rows]
            if all(map(math.isnan, means)):
                continue
            down, across = grid.columns
            table = grid.assign(mean=means).pivot(index=down, columns=across, values="mean")
            table = table.reindex(index=grid[down].unique(), columns=grid[across].unique())
            figure, (panel,) = _panels(width=1.8 + 0.9 * table.shape[1], height=1.6 + 0.7 * table.shape[0])
            panel.imshow(table, cmap="viridis_r" if facts(metric).smaller_is_better else "viridis", aspect="auto")
            box = {"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 1.5}
            for (y, x), value in np.ndenumerate(table):
                text = "missing" if math.isnan(value) else f"{value:.4f}"
                panel.text(x, y, text, ha="center", va="center", fontsize=8, bbox=box)
            panel.set_yticks(range(table.shape[0]), list(map(plot_label, table.index)))
            panel.set_xticks(range(table.shape[1]), list(map(plot_label, table.columns)))
            panel.set(xlabel=plot_label(across), ylabel=plot_label(down))
            panel.set_title(plot_label(f"{method}: {column_title(metric)}"), fontsize=9)
            yield figure


# ---- drawing -------------------------------------------------------------------------------------------------------


def _panels(lines: int = 1, columns: int = 1, width: float = 4.8, height: float = 3.4) -> tuple[Figure, Sequence[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * lines), layout="tight")
    return figure, list(figure.subplots(lines, columns, squeeze=False).flat)


def _draw(panel: Axes, evidence: Evidence, curves: Sequence[Curve]) -> None:
    """A curve that does not compare with the others is dashed."""
    for title, points, is_dashed in curves:
        color, style = colors_of(evidence)[title], "--" if is_dashed else "-"
        label = plot_label(title) + " (does not compare)" * is_dashed
        marker = "o" if len(points) < 20 else None
        panel.plot(points.x, points.y, style, color=color, marker=marker, markersize=3, label=label)
        panel.fill_between(points.x, points.low, points.high, color=color, alpha=0.15, linewidth=0)
    panel.grid(alpha=0.3)
