"""The figures of studies and comparisons: training curves over several axes, the profile over lengths, cross-entropy
against feature-matching loss, and maps over two settings. Each is one panel, so that it can be read on a phone."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ebft.evaluate.tables import over_lengths
from ebft.method.measures import NAMES, along_training
from ebft.runtime.messages import plot_label
from ebft.studies.evidence import Evidence
from ebft.studies.runs import AXES, Run, compares, facts
from ebft.studies.statistics import Summary
from ebft.studies.tables import column_title, summary_of

# Told apart also by people who do not see all colours (Okabe and Ito), and readable on white and on black.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#7f7f7f", "#6b4c9a", "#a6761d")
_MOST_POINTS = 300  # of a curve: more cannot be seen
_OF_TRAINING = ("loss", "reward", "entropy", "kl", "grad_norm", "ebft/cfm", "ebft/distinct")
_NO_METRICS = ("eval_reward", "eval_samples_per_second", "eval_steps_per_second")  # the first repeats the proxy


@dataclass(frozen=True)
class Curve:
    """The mean over seeds; the band spans them, or is one standard error wide where there is only one."""

    name: str
    x: dict[str, list[float]]  # by axis
    y: list[float]
    low: list[float]
    high: list[float]
    dashed: bool = False  # not to be compared with the others


def logged_metrics(runs: Sequence[Run]) -> list[str]:
    """Keys of metrics.jsonl to draw: those of validation, and some of training."""
    found = {key for run in runs for entry in run.entries for key in entry}
    known = [f"eval_{name}" for name in NAMES if f"eval_{name}" in found]
    others = {f"eval_{name}" for run in runs for name in run.metrics()} - {*known, *_NO_METRICS}
    return [*known, *sorted(others), *(key for key in _OF_TRAINING if key in found)]


def metric_title(key: str) -> str:
    if key.startswith("eval_") or key == "reward":
        return facts(key.removeprefix("eval_")).title
    return f"{key} (training)"


def training_curves(rows: Sequence[tuple[str, Sequence[Run], list[str]]], key: str) -> list[Curve]:
    """rows: name, the runs of its seeds, and in what their validation differs from that of the others."""
    found = []
    for name, runs, differ in rows:
        by_step = [logged for run in runs if (logged := along_training(run.entries, key))]
        if not by_step or (key == "reward" and runs[0].method != "rlvr"):
            continue
        steps = sorted(set.intersection(*map(set, by_step)))
        every = -(-len(steps) // _MOST_POINTS) or 1
        at = [[logged[step] for logged in by_step] for step in sorted({*steps[::every], *steps[-1:]})]
        x = {
            axis: [fmean(entry[column] for entry in entries) for entries in at]
            for axis, (column, _) in AXES.items()
            if all(isinstance(entry.get(column), int | float) for entries in at for entry in entries)
        }
        points = [[(float(entry[key]), entry.get(f"{key}_se")) for entry in entries] for entries in at]
        dashed = key.startswith("eval_") and not compares(key.removeprefix("eval_"), differ)
        found.append(_curve(name, x, points, dashed))
    return found


def metric_curves(rows: Sequence[tuple[str, Sequence[Run], list[str]]], axis: str) -> list[tuple[str, list[Curve]]]:
    """Of every metric that was logged over this axis: its title and curves."""
    every = [(key, training_curves(rows, key)) for key in logged_metrics([run for _, runs, _ in rows for run in runs])]
    return [(metric_title(key), found) for key, found in every if any(axis in curve.x for curve in found)]


def _curve(name: str, x: dict[str, list[float]], points: Sequence[Sequence[Any]], dashed: bool = False) -> Curve:
    """points: at each place, a value and its standard error of every seed."""
    values = [[value for value, _ in seeds] for seeds in points]
    errors = [(seeds[0][1] or 0.0) if len(seeds) == 1 else 0.0 for seeds in points]
    low = [min(seeds) - error for seeds, error in zip(values, errors, strict=True)]
    high = [max(seeds) + error for seeds, error in zip(values, errors, strict=True)]
    return Curve(name, x, list(map(fmean, values)), low, high, dashed)


def profile_curves(evidence: Evidence) -> list[Curve]:
    """The feature-matching loss over completion length, on the test data."""
    found = []
    for row in evidence.rows:
        profiles = [p for model in row.models if (p := model.results.get("calibration", {}).get("profile"))]
        if profiles := [p for p in profiles if all(point["value"] is not None for point in p)]:
            points = [[(one["value"], one["standard_error"]) for one in at] for at in zip(*profiles, strict=True)]
            found.append(_curve(row.title, {"length": [float(one["length"]) for one in profiles[0]]}, points))
    return found


# ---- drawing -------------------------------------------------------------------------------------------------------


def _panels(lines: int = 1, columns: int = 1, width: float = 4.8, height: float = 3.4) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "ebft"  # the same figure is the same file
    return plt.subplots(lines, columns, figsize=(width * columns, height * lines), squeeze=False)


def _panel(width: float = 4.8, height: float = 3.4) -> tuple[Any, Any]:
    figure, axes = _panels(1, 1, width, height)
    return figure, axes[0, 0]


def saved(figure: Any, *kinds: str) -> list[bytes]:
    """As `svg` or `png`; it is closed then."""
    import matplotlib.pyplot as plt

    figure.tight_layout()
    pictures = [io.BytesIO() for _ in kinds]
    for picture, kind in zip(pictures, kinds, strict=True):
        metadata = {"Date": None} if kind == "svg" else None
        figure.savefig(picture, dpi=120, format=kind, metadata=metadata, transparent=kind == "svg")
    plt.close(figure)
    return [picture.getvalue() for picture in pictures]


def draw(panel: Any, curves: Sequence[Curve], axis: str, colors: Mapping[str, str]) -> None:
    """Curves over an axis that they have. One that does not compare with the others is dashed."""
    for curve in (curve for curve in curves if axis in curve.x):
        style, color = "--" if curve.dashed else "-", colors[curve.name]
        label = plot_label(curve.name) + " (does not compare)" * curve.dashed
        marker = "o" if len(curve.y) < 20 else None
        panel.plot(curve.x[axis], curve.y, style, color=color, marker=marker, markersize=3, label=label)
        if curve.low != curve.high:
            panel.fill_between(curve.x[axis], curve.low, curve.high, color=color, alpha=0.15, linewidth=0)
    panel.grid(alpha=0.3)


def curves_figure(panels: Sequence[tuple[str, Sequence[Curve]]], axis: str, colors: Mapping[str, str]) -> Any:
    """A panel for each metric."""
    columns = min(3, len(panels))
    figure, axes = _panels(-(-len(panels) // columns), columns)
    for panel in axes.flat[len(panels) :]:
        panel.set_visible(False)
    for panel, (title, curves) in zip(axes.flat, panels, strict=False):
        draw(panel, curves, axis, colors)
        panel.set_title(plot_label(title), fontsize=10)
        panel.set_xlabel(AXES[axis][1])
        panel.legend(fontsize=7)
    return figure


def profile_figure(curves: Sequence[Curve], colors: Mapping[str, str]) -> Any:
    figure, panel = _panel()
    draw(panel, curves, "length", colors)
    over_lengths(panel, {length for curve in curves for length in curve.x["length"]})
    panel.set_ylabel("feature-matching loss")
    return figure


def pareto_figure(evidence: Evidence, colors: Mapping[str, str]) -> Any | None:
    """Rows with both metrics. Lower and further left is better."""
    both = ("calibration cross_entropy", "calibration cfm")
    points = [(row, summary_of(row, both[0]), summary_of(row, both[1])) for row in evidence.rows]
    known = [(row, x, y) for row, x, y in points if x is not None and y is not None]
    if len(known) < 2:
        return None
    figure, panel = _panel()
    for row, x, y in known:
        style = {"fmt": "o", "elinewidth": 1, "capsize": 2, "color": colors[row.title]}
        panel.errorbar(x.value, y.value, xerr=_bar(x), yerr=_bar(y), **style)
        panel.annotate(plot_label(row.title), (x.value, y.value), textcoords="offset points", xytext=(5, 5), fontsize=8)
    panel.set_xlabel("cross-entropy, all tokens")
    panel.set_ylabel("feature-matching loss")
    panel.margins(0.15)
    panel.grid(alpha=0.3)
    return figure


def _bar(found: Summary) -> list[list[float]] | None:
    interval = found.interval
    return None if interval is None else [[found.value - interval.low], [interval.high - found.value]]


def heat_figures(evidence: Evidence, metrics: Sequence[str]) -> list[Any]:
    """Of every method whose grid has two settings: a map of each metric."""
    found = []
    for method in dict.fromkeys(row.method for row in evidence.rows):
        rows = [row for row in evidence.rows if row.method == method]
        varied = [name for name in rows[0].values if len({str(row.values.get(name)) for row in rows}) > 1]
        for metric in metrics if len(varied) == 2 else ():
            means = {tuple(str(row.values[name]) for name in varied): summary_of(row, metric) for row in rows}
            if any(means.values()):
                found.append(_heat_figure(f"{method}: {column_title(metric)}", varied, means, metric))
    return found


def _heat_figure(title: str, names: Sequence[str], means: Mapping[tuple[str, ...], Summary | None], metric: str) -> Any:
    ys, xs = (list(dict.fromkeys(values)) for values in zip(*means, strict=True))
    figure, panel = _panel(1.8 + 0.9 * len(xs), 1.6 + 0.7 * len(ys))
    cells = [[means.get((y, x)) for x in xs] for y in ys]
    colors = "viridis_r" if facts(metric).smaller_is_better else "viridis"
    panel.imshow([[float("nan") if c is None else c.value for c in line] for line in cells], cmap=colors, aspect="auto")
    box = {"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 1.5}
    for place, line in enumerate(cells):
        for column, one in enumerate(line):
            text = "missing" if one is None else f"{one.value:.4f}"
            panel.text(column, place, text, ha="center", va="center", fontsize=8, bbox=box)
    panel.set_yticks(range(len(ys)), list(map(plot_label, ys)))
    panel.set_xticks(range(len(xs)), list(map(plot_label, xs)))
    panel.set_ylabel(plot_label(names[0]))
    panel.set_xlabel(plot_label(names[1]))
    panel.set_title(plot_label(title), fontsize=9)
    return figure
