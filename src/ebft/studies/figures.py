"""The figures of studies and comparisons: training curves over an axis, the profile over lengths, cross-entropy against
feature-matching loss, and maps over two settings."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from ebft.evaluate.tables import over_lengths
from ebft.method.measures import NAMES, along_training
from ebft.runtime.messages import plot_label
from ebft.studies.evidence import Evidence
from ebft.studies.runs import AXES, Run, compares, facts, validated_apart
from ebft.studies.statistics import Summary
from ebft.studies.tables import column_title, summary_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Told apart also by people who do not see all colours (Okabe and Ito), and readable on white and on black.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#7f7f7f", "#6b4c9a", "#a6761d")
_MOST_POINTS = 300  # of a curve: more cannot be seen
_OF_TRAINING = ("loss", "reward", "entropy", "kl", "grad_norm", "ebft/cfm", "ebft/distinct")
_NO_METRICS = ("reward", "samples_per_second", "steps_per_second")  # the first repeats the proxy
Rows = Sequence[tuple[str, Sequence[Run]]]  # names, and the runs of their seeds


class Curve(NamedTuple):
    """The mean over seeds; the band spans them, or is one standard error wide where there is only one."""

    name: str
    x: list[float]
    points: list[list[tuple[float, float | None]]]  # at each place, a value and its standard error of every seed
    is_dashed: bool = False  # not to be compared with the others


def colors_of(names: Iterable[str]) -> dict[str, str]:
    return dict(zip(names, itertools.cycle(COLORS), strict=False))


def training_curves(rows: Rows, reference: Run | None, axis: str) -> dict[str, list[Curve]]:
    """By title, every metric of validation and some of training, where they were logged over this axis."""
    runs = [run for _, seeds in rows for run in seeds]
    metrics = {name for run in runs for name in run.metrics()} - {*_NO_METRICS}
    names = [*(name for name in NAMES if name in metrics), *sorted(metrics - {*NAMES})]
    titles = {f"eval_{name}": facts(name).title for name in names}
    titles |= {key: facts(key).title if key == "reward" else f"{key} (training)" for key in _OF_TRAINING}
    found = {}
    for key, title in titles.items():
        curves = [_training_curve(name, seeds, reference, key, axis) for name, seeds in rows]
        if known := [curve for curve in curves if curve is not None]:
            found[title] = known
    return found


def _training_curve(name: str, runs: Sequence[Run], reference: Run | None, key: str, axis: str) -> Curve | None:
    """At the steps that all seeds have measured."""
    by_step = [logged for run in runs if (logged := along_training(run.entries, key))]
    if not by_step or (key == "reward" and runs[0].method != "rlvr"):
        return None
    steps, column = sorted(set.intersection(*map(set, by_step))), AXES[axis][0]
    steps = sorted({*steps[:: -(-len(steps) // _MOST_POINTS) or 1], *steps[-1:]})
    if not all(isinstance(logged[step].get(column), int | float) for logged in by_step for step in steps):
        return None
    points = [[(logged[step][key], logged[step].get(f"{key}_se")) for logged in by_step] for step in steps]
    differ = validated_apart(runs[0], reference) if key.startswith("eval_") else []
    x = [fmean(logged[step][column] for logged in by_step) for step in steps]
    return Curve(name, x, points, not compares(key.removeprefix("eval_"), differ))


def curves_figure(curves: Mapping[str, Sequence[Curve]], axis: str, colors: Mapping[str, str]) -> Figure:
    """A panel for each metric."""
    columns = min(3, len(curves))
    figure, panels = _panels(-(-len(curves) // columns), columns)
    for panel in panels[len(curves) :]:
        panel.set_visible(False)
    for panel, (title, of_metric) in zip(panels, curves.items(), strict=False):
        _draw(panel, of_metric, colors)
        panel.set_title(plot_label(title), fontsize=10)
        panel.set_xlabel(AXES[axis][1])
        panel.legend(fontsize=7)
    return figure


def profile_figure(evidence: Evidence, colors: Mapping[str, str]) -> Figure | None:
    """The feature-matching loss over completion length, on the test data."""
    curves = []
    for row in evidence.rows:
        profiles = [p for model in row.models if (p := model.results.get("calibration", {}).get("profile"))]
        if profiles := [p for p in profiles if all(point["value"] is not None for point in p)]:
            points = [[(one["value"], one["standard_error"]) for one in at] for at in zip(*profiles, strict=True)]
            curves.append(Curve(row.title, [float(point["length"]) for point in profiles[0]], points))
    if not curves:
        return None
    figure, (panel,) = _panels()
    _draw(panel, curves, colors)
    over_lengths(panel, {length for curve in curves for length in curve.x})
    panel.set_ylabel("feature-matching loss")
    return figure


def pareto_figure(evidence: Evidence, colors: Mapping[str, str]) -> Figure | None:
    both = ("calibration cross_entropy", "calibration cfm")
    points = [(row.title, summary_of(row, both[0]), summary_of(row, both[1])) for row in evidence.rows]
    known = [(title, x, y) for title, x, y in points if x is not None and y is not None]
    if len(known) < 2:
        return None
    figure, (panel,) = _panels()
    for title, x, y in known:
        panel.errorbar(x.value, y.value, _bar(y), _bar(x), "o", color=colors[title], elinewidth=1, capsize=2)
        panel.annotate(plot_label(title), (x.value, y.value), textcoords="offset points", xytext=(5, 5), fontsize=8)
    panel.set_xlabel("cross-entropy, all tokens")
    panel.set_ylabel("feature-matching loss")
    panel.margins(0.15)
    panel.grid(alpha=0.3)
    return figure


def _bar(found: Summary) -> list[list[float]] | None:
    interval = found.interval
    return None if interval is None else [[found.value - interval.low], [interval.high - found.value]]


def heat_figures(evidence: Evidence, metrics: Sequence[str]) -> list[Figure]:
    """Of every method whose grid has two settings: a map of each metric."""
    found = []
    for method in dict.fromkeys(row.method for row in evidence.rows):
        rows = [row for row in evidence.rows if row.method == method]
        varied = [name for name in rows[0].values if len({str(row.values.get(name)) for row in rows}) > 1]
        for metric in metrics if len(varied) == 2 else ():
            means = {tuple(str(row.values[name]) for name in varied): summary_of(row, metric) for row in rows}
            if any(means.values()):
                figure = _heat_figure(varied, means, "viridis_r" if facts(metric).smaller_is_better else "viridis")
                figure.axes[0].set_title(plot_label(f"{method}: {column_title(metric)}"), fontsize=9)
                found.append(figure)
    return found


def _heat_figure(names: Sequence[str], means: Mapping[tuple[str, ...], Summary | None], colors: str) -> Figure:
    ys, xs = (list(dict.fromkeys(values)) for values in zip(*means, strict=True))
    figure, (panel,) = _panels(width=1.8 + 0.9 * len(xs), height=1.6 + 0.7 * len(ys))
    values = [[one.value if (one := means.get((y, x))) else float("nan") for x in xs] for y in ys]
    panel.imshow(values, cmap=colors, aspect="auto")
    box = {"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 1.5}
    for (row, line), (column, _) in itertools.product(enumerate(values), enumerate(xs)):
        text = "missing" if line[column] != line[column] else f"{line[column]:.4f}"
        panel.text(column, row, text, ha="center", va="center", fontsize=8, bbox=box)
    panel.set_yticks(range(len(ys)), list(map(plot_label, ys)))
    panel.set_xticks(range(len(xs)), list(map(plot_label, xs)))
    panel.set_ylabel(plot_label(names[0]))
    panel.set_xlabel(plot_label(names[1]))
    return figure


# ---- drawing -------------------------------------------------------------------------------------------------------


def _panels(lines: int = 1, columns: int = 1, width: float = 4.8, height: float = 3.4) -> tuple[Figure, Sequence[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * lines), layout="tight")
    return figure, list(figure.subplots(lines, columns, squeeze=False).flat)


def _draw(panel: Axes, curves: Sequence[Curve], colors: Mapping[str, str]) -> None:
    """A curve that does not compare with the others is dashed."""
    for name, x, points, is_dashed in curves:
        values = [[value for value, _ in seeds] for seeds in points]
        errors = [(seeds[0][1] or 0.0) if len(seeds) == 1 else 0.0 for seeds in points]
        low = [min(seeds) - error for seeds, error in zip(values, errors, strict=True)]
        high = [max(seeds) + error for seeds, error in zip(values, errors, strict=True)]
        label = plot_label(name) + " (does not compare)" * is_dashed
        style, marker = "--" if is_dashed else "-", "o" if len(x) < 20 else None
        panel.plot(x, list(map(fmean, values)), style, color=colors[name], marker=marker, markersize=3, label=label)
        if low != high:
            panel.fill_between(x, low, high, color=colors[name], alpha=0.15, linewidth=0)
    panel.grid(alpha=0.3)


def saved(figure: Figure, kind: str) -> bytes:
    """As `svg`, the same for the same figure, or `png`."""
    import matplotlib

    picture = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "ebft"}):
        metadata = {"Date": None} if kind == "svg" else None
        figure.savefig(picture, dpi=120, format=kind, metadata=metadata, transparent=kind == "svg")
    return picture.getvalue()
