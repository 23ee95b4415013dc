"""The figures of a report as PNG and SVG files, for papers and slides; the page draws its own, which can be used."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from ebft.evaluate.tables import over_lengths
from ebft.runtime.messages import plot_label
from ebft.studies.report.curves import Curve, HeatMap
from ebft.studies.runs import AXES

# Told apart also by people who do not see all colours (Okabe and Ito), and readable on white and on black.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#7f7f7f", "#6b4c9a", "#a6761d")


def color(place: int) -> str:
    return COLORS[place % len(COLORS)]


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "ebft"  # the same figure is the same file
    return plt


def saved(figure: Any, kind: str) -> bytes:
    buffer = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else None
    figure.savefig(buffer, dpi=120, format=kind, metadata=metadata)
    return buffer.getvalue()


def both(figure: Any) -> dict[str, bytes]:
    """As PNG and as SVG."""
    found = {kind: saved(figure, kind) for kind in ("png", "svg")}
    _pyplot().close(figure)
    return found


def curves_figure(panels: Sequence[tuple[str, Sequence[Curve]]], axis: str, names: Sequence[str]) -> Any:
    """A panel for each metric. A curve that does not compare with the others is dashed, and the title says so."""
    plt = _pyplot()
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(4.8 * columns, 3.4 * lines), squeeze=False)
    for panel in axes.flat[len(panels) :]:
        panel.set_visible(False)
    legend: dict[str, Any] = {}
    for panel, (title, curves) in zip(axes.flat, panels, strict=False):
        for curve in curves:
            if axis in curve.x:
                legend.setdefault(curve.name, _draw(panel, curve, axis, color(list(names).index(curve.name))))
        apart = "\n(dashed: does not compare)" if any(curve.dashed for curve in curves) else ""
        panel.set_title(plot_label(title) + apart, fontsize=10)
        panel.set_xlabel(AXES[axis][1] if axis in AXES else axis)
        panel.grid(alpha=0.3)
    labels = [plot_label(label) for label in legend]
    figure.legend(legend.values(), labels, loc="upper center", ncols=min(4, len(legend) or 1), fontsize=9)
    rows = -(-len(labels) // 4)
    figure.tight_layout(rect=(0, 0, 1, 1 - (0.1 + 0.25 * rows) / figure.get_figheight()))
    return figure


def _draw(panel: Any, curve: Curve, axis: str, shade: str) -> Any:
    marker = "o" if len(curve.y) < 20 else None
    style = "--" if curve.dashed else "-"
    (line,) = panel.plot(curve.x[axis], curve.y, style, color=shade, marker=marker, markersize=3)
    if curve.low != curve.high:
        panel.fill_between(curve.x[axis], curve.low, curve.high, color=shade, alpha=0.15, linewidth=0)
    return line


def profile_figure(curves: Sequence[Curve], names: Sequence[str]) -> Any:
    plt = _pyplot()
    figure, panel = plt.subplots(figsize=(5.2, 3.8))
    for curve in curves:
        _draw(panel, curve, "length", color(list(names).index(curve.name))).set_label(plot_label(curve.name))
    over_lengths(panel, {length for curve in curves for length in curve.x["length"]})
    panel.set_ylabel("feature-matching loss")
    figure.tight_layout()
    return figure


def pareto_figure(points: Sequence[tuple[Any, Any, Any]], labels: tuple[str, str], names: Sequence[str]) -> Any:
    plt = _pyplot()
    figure, panel = plt.subplots(figsize=(5.2, 3.8))
    for row, x, y in points:
        shade = color(list(names).index(row.title))
        bars = {"xerr": _bar(x), "yerr": _bar(y)}
        panel.errorbar(x.value, y.value, **bars, fmt="o", color=shade, elinewidth=1, capsize=2)
        panel.annotate(plot_label(row.title), (x.value, y.value), textcoords="offset points", xytext=(5, 5), fontsize=8)
    panel.set_xlabel(labels[0])
    panel.set_ylabel(labels[1])
    panel.margins(0.15)
    panel.grid(alpha=0.3)
    figure.tight_layout()
    return figure


def _bar(found: Any) -> list[list[float]] | None:
    if found.interval is None:
        return None
    return [[found.value - found.interval.low], [found.interval.high - found.value]]


def heat_figure(found: HeatMap) -> Any:
    plt = _pyplot()
    figure, panel = plt.subplots(figsize=(1.6 + 0.9 * len(found.x), 1.6 + 0.7 * len(found.y)))
    values = [[float("nan") if value is None else value for value in line] for line in found.values]
    panel.imshow(values, cmap="viridis_r" if found.smaller_is_better else "viridis", aspect="auto")
    for place, line in enumerate(found.values):
        for column, value in enumerate(line):
            text = "missing" if value is None else f"{value:.4f}"
            box = {"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 1.5}
            panel.text(column, place, text, ha="center", va="center", fontsize=8, bbox=box)
    panel.set_xticks(range(len(found.x)), [str(value) for value in found.x])
    panel.set_yticks(range(len(found.y)), [str(value) for value in found.y])
    panel.set_xlabel(plot_label(found.x_name))
    panel.set_ylabel(plot_label(found.y_name))
    panel.set_title(plot_label(found.title), fontsize=9)
    figure.tight_layout()
    return figure
