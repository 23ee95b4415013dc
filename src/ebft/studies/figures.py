"""The figures of studies and comparisons: training curves over an axis, and the profile over lengths."""

from __future__ import annotations

import io
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ebft.evaluate.tables import over_lengths
from ebft.method.measures import along_training
from ebft.runtime.messages import plot_label
from ebft.studies.evidence import AXES, Evidence, Row, compares, validation_metrics
from ebft.studies.tables import name_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

# Told apart also by people who do not see all colours (Okabe and Ito).
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#7f7f7f", "#6b4c9a", "#a6761d")
_OF_TRAINING = ("loss", "reward", "entropy", "kl", "grad_norm", "ebft/cfm", "ebft/distinct")


def draw(evidence: Evidence) -> dict[str, Figure]:
    """All figures of a report, by the names of their files."""
    drawn = {f"training-{axis}": training_figure(evidence, axis) for axis in AXES}
    drawn["profile"] = _profile_figure(evidence)
    return {name: figure for name, figure in drawn.items() if figure is not None}


def saved(figure: Figure) -> tuple[bytes, bytes]:
    """As SVG and as PNG."""
    svg, png = io.BytesIO(), io.BytesIO()
    figure.savefig(svg, format="svg", transparent=True)
    figure.savefig(png, format="png", dpi=120)
    return svg.getvalue(), png.getvalue()


def training_figure(evidence: Evidence, axis: str) -> Figure | None:
    """A panel for every metric of validation and some of training that were logged over this axis. A curve that does
    not compare with the others is dashed."""
    metrics = validation_metrics(model.run for model in evidence.models if model.run is not None)
    titles = {f"eval_{metric}": name_of(metric) for metric in metrics}
    titles |= {key: name_of(key) if key == "reward" else f"{key} (training)" for key in _OF_TRAINING}
    panels: dict[str, list[tuple[Row, DataFrame, bool]]] = {}
    for (key, title), row in itertools.product(titles.items(), evidence.rows):
        runs = [m.run for m in row.models if m.run is not None and (key != "reward" or row.kind == "rlvr")]
        logged = [along_training(run.entries, key).items() for run in runs]
        points = [[(step, e.get(AXES[axis][0]), e[key], e.get(f"{key}_se")) for step, e in of] for of in logged]
        if (found := _over_seeds(points)) is not None:
            title = f"{row.kind}'s {title}" if key == "loss" else title  # those of two methods are different quantities
            differ = runs[0].apart if key.startswith("eval_") else ()
            panels.setdefault(title, []).append((row, found, compares(key.removeprefix("eval_"), differ)))
    if not panels:
        return None
    columns = min(3, len(panels))
    figure, axes = _panels(-(-len(panels) // columns), columns)
    for panel in axes[len(panels) :]:
        panel.set_visible(False)
    for panel, (title, curves) in zip(axes, panels.items(), strict=False):
        for row, points, is_alike in curves:
            _draw(panel, evidence, row, points, is_alike)
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
    return None if found.empty or found.x.isna().any() else found


def _profile_figure(evidence: Evidence) -> Figure | None:
    """The feature-matching loss over completion length, on the test data."""
    lengths = set[float]()
    figure, (panel,) = _panels()
    for row in evidence.rows:
        profiles = [model.results.get("calibration", {}).get("profile", ()) for model in row.models]
        points = [[(p["length"], p["length"], p["value"], p["standard_error"]) for p in of] for of in profiles]
        if (found := _over_seeds(points)) is not None:
            _draw(panel, evidence, row, found)
            lengths |= {*found.x}
    if not lengths:
        return None
    over_lengths(panel, lengths)
    panel.set_ylabel("feature-matching loss")
    return figure


def _panels(lines: int = 1, columns: int = 1) -> tuple[Figure, Sequence[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.8 * columns, 3.4 * lines), layout="tight")
    return figure, list(figure.subplots(lines, columns, squeeze=False).flat)


def _draw(panel: Axes, evidence: Evidence, row: Row, points: DataFrame, is_alike: bool = True) -> None:
    color = COLORS[evidence.rows.index(row) % len(COLORS)]
    label = plot_label(row.title) + " (does not compare)" * (not is_alike)
    style, marker = "-" if is_alike else "--", "o" if len(points) < 20 else None
    panel.plot(points.x, points.y, style, color=color, marker=marker, markersize=3, label=label)
    panel.fill_between(points.x, points.low, points.high, color=color, alpha=0.15, linewidth=0)
    panel.grid(alpha=0.3)
