"""The figures of studies and comparisons: training curves over an axis, the profile over lengths, cross-entropy against
feature-matching loss, and maps over two settings."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ebft.evaluate.tables import over_lengths
from ebft.method.measures import along_training
from ebft.runtime.messages import plot_label
from ebft.studies.evidence import Evidence
from ebft.studies.runs import AXES, compares, facts, validated_apart, validation_metrics
from ebft.studies.tables import column_title, summary_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

# Told apart also by people who do not see all colours (Okabe and Ito), and readable on white and on black.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#7f7f7f", "#6b4c9a", "#a6761d")
_MOST_POINTS = 300  # of a curve: more cannot be seen
_OF_TRAINING = ("loss", "reward", "entropy", "kl", "grad_norm", "ebft/cfm", "ebft/distinct")


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
    """A panel for every metric of validation and some of training that were logged over this axis. A curve that does
    not compare with the others is dashed."""
    metrics = validation_metrics(model.run for model in evidence.models if model.run is not None)
    titles = {f"eval_{metric}": facts(metric).title for metric in metrics}
    titles |= {key: facts(key).title if key == "reward" else f"{key} (training)" for key in _OF_TRAINING}
    panels: dict[str, list[tuple[str, DataFrame, bool]]] = {}
    for (key, title), row in itertools.product(titles.items(), evidence.rows):
        runs = [m.run for m in row.models if m.run is not None and (key != "reward" or row.kind == "rlvr")]
        fields = (AXES[axis][0], key, f"{key}_se")
        logged = [along_training(run.entries, key).items() for run in runs]
        found = _over_seeds([[(step, *map(entry.get, fields)) for step, entry in of_run] for of_run in logged])
        if found is not None:
            differ = validated_apart(runs[0], evidence.reference) if key.startswith("eval_") else []
            is_alike = compares(key.removeprefix("eval_"), differ)
            panels.setdefault(title, []).append((row.title, found, is_alike))
    if not panels:
        return None
    columns = min(3, len(panels))
    figure, axes = _panels(-(-len(panels) // columns), columns)
    for panel in axes[len(panels) :]:
        panel.set_visible(False)
    for panel, (title, curves) in zip(axes, panels.items(), strict=False):
        for name, points, is_alike in curves:
            _draw(panel, evidence, name, points, is_alike)
        panel.set_title(plot_label(title), fontsize=10)
        panel.set_xlabel(AXES[axis][1])
        panel.legend(fontsize=7)
    return figure


def _over_seeds(seeds: Sequence[Sequence[tuple[object, ...]]]) -> DataFrame | None:
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
    lengths = set[float]()
    figure, (panel,) = _panels()
    for row in evidence.rows:
        profiles = [model.results.get("calibration", {}).get("profile", ()) for model in row.models]
        points = [[(p["length"], p["length"], p["value"], p["standard_error"]) for p in of] for of in profiles]
        if (found := _over_seeds(points)) is not None:
            _draw(panel, evidence, row.title, found)
            lengths |= {*found.x}
    if not lengths:
        return None
    over_lengths(panel, lengths)
    panel.set_ylabel("feature-matching loss")
    return figure


def _pareto_figure(evidence: Evidence) -> Figure | None:
    figure, (panel,) = _panels()
    for row in evidence.rows:
        x, y = (summary_of(row, f"calibration {metric}") for metric in ("cross_entropy", "cfm"))
        if x is not None and y is not None:
            color = colors_of(evidence)[row.title]
            panel.errorbar(x.value, y.value, y.error, x.error, "o", color=color, elinewidth=1, capsize=2)
            at = (x.value, y.value)
            panel.annotate(plot_label(row.title), at, textcoords="offset points", xytext=(5, 5), fontsize=8)
    panel.set(xlabel="cross-entropy, all tokens", ylabel="feature-matching loss")
    panel.margins(0.15)
    panel.grid(alpha=0.3)
    return figure if len(panel.texts) > 1 else None


def _maps(evidence: Evidence, metrics: Sequence[str]) -> Iterator[Figure]:
    """Of every method whose grid has two settings: a map of each metric."""
    import pandas as pd

    for method in dict.fromkeys(row.method for row in evidence.rows):
        rows = [row for row in evidence.rows if row.method == method]
        grid = pd.DataFrame([row.values for row in rows]).astype(str)
        grid = grid.loc[:, grid.nunique() > 1]
        for metric in metrics if len(grid.columns) == 2 else ():
            means = [None if (found := summary_of(row, metric)) is None else found.value for row in rows]
            down, across = grid.columns
            table = grid.assign(mean=pd.Series(means, dtype=float)).pivot(index=down, columns=across, values="mean")
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
            if table.notna().any(axis=None):
                yield figure


# ---- drawing -------------------------------------------------------------------------------------------------------


def _panels(lines: int = 1, columns: int = 1, width: float = 4.8, height: float = 3.4) -> tuple[Figure, Sequence[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * lines), layout="tight")
    return figure, list(figure.subplots(lines, columns, squeeze=False).flat)


def _draw(panel: Axes, evidence: Evidence, title: str, points: DataFrame, is_alike: bool = True) -> None:
    color, label = colors_of(evidence)[title], plot_label(title) + " (does not compare)" * (not is_alike)
    style, marker = "-" if is_alike else "--", "o" if len(points) < 20 else None
    panel.plot(points.x, points.y, style, color=color, marker=marker, markersize=3, label=label)
    panel.fill_between(points.x, points.low, points.high, color=color, alpha=0.15, linewidth=0)
    panel.grid(alpha=0.3)
