"""`ebft compare`: runs side by side, finished or not, by EBFT or a baseline: a table and overlaid curves.

A run is its folder. Everything is read from `metrics.jsonl` and `results.json`, so it costs nothing to ask while runs
are going on.
"""

from __future__ import annotations

import argparse
import base64
import html
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ebft.config.training import LARGER_IS_BETTER
from ebft.errors import ConfigError
from ebft.train.metric_names import NAMES, with_error

AXES = {
    "steps": ("step", "steps"),
    "tokens": ("spent/tokens", "tokens of text"),
    "seconds": ("spent/seconds", "seconds of training"),
    "flops": ("spent/flops", "FLOPs of training"),
}
SPENT = {"step": "steps", "spent/tokens": "tokens", "spent/seconds": "seconds", "spent/flops": "FLOPs"}
PNG, HTML, TABLE = "compare.png", "compare.html", "compare.json"
FOLDER = "compare"  # where they go unless told otherwise


@dataclass(frozen=True)
class Point:
    step: int
    value: float
    error: float | None
    spent: dict[str, float]

    def shown(self) -> str:
        return with_error(self.value, self.error)


@dataclass
class Run:
    name: str
    folder: Path
    method: str
    finished: bool
    ruler: dict[str, Any] | None
    entries: list[dict[str, Any]]

    def points(self, metric: str) -> list[Point]:
        """Values of a validation metric by step; of two at one step, the later."""
        found: dict[int, Point] = {}
        for entry in self.entries:
            value = entry.get(f"eval_{metric}")
            if value is not None:
                spent = {key: float(entry[key]) for key in SPENT if entry.get(key) is not None}
                found[entry["step"]] = Point(entry["step"], value, entry.get(f"eval_{metric}_se"), spent)
        return [found[step] for step in sorted(found)]

    @property
    def state(self) -> str:
        return "finished" if self.finished else "not finished"

    def metrics(self) -> set[str]:
        names = {key.removeprefix("eval_") for entry in self.entries for key in entry if key.startswith("eval_")}
        return {name for name in names if not name.endswith(("_se", "runtime"))}


@dataclass
class Comparison:
    table: list[tuple[str, ...]]
    notes: list[str] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="output folders of ebft train, sft or rlvr")
    parser.add_argument("--output", default=FOLDER, help=f"folder for {PNG}, {HTML} and {TABLE} [{FOLDER}]")
    parser.add_argument("--x", default="steps", help=f"horizontal axis of the PNG: {', '.join(AXES)} [steps]")
    parser.add_argument("--name", action="append", default=[], help="what to call a run, one for each, in order")


def compare(
    runs: Sequence[str], output: str | None = None, axis: str = "steps", names: Sequence[str] = ()
) -> Comparison:
    """The table of some runs; with `output` also its picture, page and numbers."""
    if axis not in AXES:
        raise ConfigError(f"--x {axis} is not one of {', '.join(AXES)}")
    if names and len(names) != len(runs):
        raise ConfigError(f"--name is given {len(names)} times for {len(runs)} runs; give one for each, or none")
    folder = None if output is None else _output(output)
    found = _named([read_run(Path(run)) for run in runs], names)
    metrics = _metrics(found)
    if not metrics:
        raise ConfigError("no validation metrics in these runs yet; wait for the first evaluation")
    comparison = Comparison(_table(found, metrics), _notes(found, metrics))
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        comparison.files = _write(folder, found, metrics, comparison, axis)
    return comparison


def _output(output: str) -> Path:
    folder = Path(output).expanduser()
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--output {folder} is a file; give a folder")
    if (folder / "metrics.jsonl").exists():
        raise ConfigError(f"--output {folder} is the folder of a run; choose another")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / TABLE).exists():
        raise ConfigError(f"--output {folder} is not empty and holds no comparison; choose another folder")
    return folder


def read_run(folder: Path) -> Run:
    folder = folder.expanduser()
    if folder.name == "final" and not (folder / "metrics.jsonl").exists():
        folder = folder.parent
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such run")
    file = folder / "metrics.jsonl"
    if not file.is_file():
        raise ConfigError(
            f"{folder} holds no metrics.jsonl, so it is not the output folder of a run, or nothing is logged yet"
        )
    entries = []
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue  # the line that is being written
        if isinstance(entry, dict) and isinstance(entry.get("step"), int):
            entries.append(entry)
    results = {}
    if (folder / "results.json").is_file():
        try:
            results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise ConfigError(f"{folder}/results.json is not valid JSON ({error.msg})") from None
    return Run(
        folder.resolve().name, folder, results.get("method", "ebft"), "steps" in results, results.get("ruler"), entries
    )


def _named(runs: list[Run], names: Sequence[str]) -> list[Run]:
    """By their folders' names, or where these are equal by their paths."""
    for run, name in zip(runs, names, strict=False):
        run.name = name
    if len({run.name for run in runs}) < len(runs):
        for run in runs:
            run.name = str(run.folder)
    if len({run.name for run in runs}) < len(runs):
        raise ConfigError("a run is given twice; give each once, or names of their own with --name")
    return runs


def _metrics(runs: list[Run]) -> list[str]:
    """Those with a name first, then others that any run has."""
    there = {metric for run in runs for metric in run.metrics() if run.points(metric)}
    return [*(m for m in NAMES if m in there), *sorted(there - set(NAMES))]


def best(points: Sequence[Point], metric: str) -> Point:
    """Earliest of the best. Rates and scores of tasks are better when larger, losses when smaller."""
    larger = metric in LARGER_IS_BETTER or not any(word in metric for word in ("cross_entropy", "cfm", "loss"))
    return (max if larger else min)(points, key=lambda point: point.value)


def _table(runs: list[Run], metrics: list[str]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("run", "method", "metric", "first", "best", "at step", "last", "at step")]
    for metric in metrics:
        for run in runs:
            points = run.points(metric)
            if points:
                top, last = best(points, metric), points[-1]
                title = NAMES.get(metric, metric)
                shown = (points[0].shown(), top.shown(), str(top.step), last.shown(), str(last.step))
                rows.append((run.name, run.method, title, *shown))
    rows.append(("",) * 8)
    rows.append(("run", "method", "state", "steps", "tokens", "generated", "seconds", "FLOPs"))
    for run in runs:
        entry: dict[str, Any] = {}
        for line in run.entries:
            entry.update({k: v for k, v in line.items() if k.startswith("spent/") or k == "step"})
        cells = (
            f"{entry.get('step', 0):,}",
            *(
                f"{entry[key]:{form}}" if entry.get(key) is not None else ""
                for key, form in (
                    ("spent/tokens", ",.0f"),
                    ("spent/generated_tokens", ",.0f"),
                    ("spent/seconds", ",.1f"),
                    ("spent/flops", ".3g"),
                )
            ),
        )
        rows.append((run.name, run.method, run.state, *cells))
    return rows


def _notes(runs: list[Run], metrics: list[str]) -> list[str]:
    """What makes numbers of two runs incomparable."""
    from ebft.train.ruler import FEATURE_SETTINGS, PROXY_SETTINGS

    features = ("network", *FEATURE_SETTINGS)
    notes = []
    first = next((run for run in runs if run.ruler is not None), None)
    for run in runs:
        if not any(run.points(metric) for metric in metrics):
            notes.append(f"{run.name} has no validation metrics, so it stands only in the second table")
        elif run.ruler is None:
            notes.append(f"{run.name} does not say how it was measured; its numbers may not compare")
        elif first is not None and first.ruler is not None and run is not first:
            differ = [key for key in {**first.ruler, **run.ruler} if first.ruler.get(key) != run.ruler.get(key)]
            hard = sorted(key for key in differ if key not in PROXY_SETTINGS)
            soft = sorted(key for key in differ if key in PROXY_SETTINGS)
            if hard:
                advice = "do not compare their numbers"
                if all(key in features for key in hard):
                    advice = "of their numbers compare only the cross-entropies"
                notes.append(
                    f"{run.name} and {first.name} were not measured alike "
                    f"({_differences(hard, first.ruler, run.ruler)}); {advice}"
                )
            elif soft:
                notes.append(
                    f"{run.name} and {first.name} differ in {_differences(soft, first.ruler, run.ruler)}; their "
                    "whitened proxy and reward do not compare"
                )
    return notes


def _differences(keys: Sequence[str], first: dict[str, Any], other: dict[str, Any]) -> str:
    words = {"network": "the frozen feature network", "validation": "the validation text"}
    return ", ".join(words.get(key, f"{key} {other.get(key)} and {first.get(key)}") for key in keys)


# ---- pictures ------------------------------------------------------------------------------------------------------


def _write(folder: Path, runs: list[Run], metrics: list[str], comparison: Comparison, axis: str) -> list[Path]:
    pictures = {name: _picture(runs, metrics, name) for name in AXES if _has_axis(runs, metrics, name)}
    if axis not in pictures:
        raise ConfigError(f"--x {axis}: these runs were made before ebft logged it; use --x steps")
    numbers = {
        run.name: {
            "folder": str(run.folder),
            "method": run.method,
            "finished": run.finished,
            "metrics": {
                metric: [
                    {
                        "step": p.step,
                        "value": p.value,
                        "standard_error": p.error,
                        **{SPENT[k]: v for k, v in p.spent.items()},
                    }
                    for p in run.points(metric)
                ]
                for metric in metrics
            },
        }
        for run in runs
    }
    files = [folder / TABLE, folder / PNG, folder / HTML]
    files[0].write_text(json.dumps({"runs": numbers, "notes": comparison.notes}, indent=1), encoding="utf-8")
    files[1].write_bytes(pictures[axis])
    files[2].write_text(_page(comparison, pictures, axis), encoding="utf-8")
    return files


def _has_axis(runs: list[Run], metrics: list[str], axis: str) -> bool:
    return any(AXES[axis][0] in point.spent for run in runs for metric in metrics for point in run.points(metric))


def _picture(runs: list[Run], metrics: list[str], axis: str) -> bytes:
    """One panel for each metric, one curve with its standard errors for each run."""
    import io

    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    key, label = AXES[axis]
    columns = min(3, len(metrics))
    lines = -(-len(metrics) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(4.8 * columns, 3.4 * lines), squeeze=False)
    for panel in axes.flat[len(metrics) :]:
        panel.set_visible(False)
    for panel, metric in zip(axes.flat, metrics, strict=False):
        for place, run in enumerate(runs):
            points = [p for p in run.points(metric) if key in p.spent]
            if not points:
                continue
            x, y = [p.spent[key] for p in points], [p.value for p in points]
            color = f"C{place % 10}"
            panel.plot(x, y, color=color, marker="o" if len(points) < 20 else None, markersize=3, label=run.name)
            if any(p.error for p in points):
                lower, upper = ([p.value + sign * (p.error or 0.0) for p in points] for sign in (-1, 1))
                panel.fill_between(x, lower, upper, color=color, alpha=0.15)
        panel.set_title(NAMES.get(metric, metric), fontsize=10)
        panel.set_xlabel(label)
        panel.grid(alpha=0.3)
    handles: dict[str, Any] = {}
    for panel in axes.flat:
        for handle, name in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    figure.legend(handles.values(), handles.keys(), loc="upper center", ncols=min(4, len(handles)), fontsize=9)
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.35 / figure.get_figheight()))
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=120, format="png")
    plt.close(figure)
    return buffer.getvalue()


def _page(comparison: Comparison, pictures: dict[str, bytes], axis: str) -> str:
    """One file without scripts or anything from elsewhere; radio buttons choose the axis."""
    buttons, shown, rules = [], [], []
    for name, picture in pictures.items():
        checked = " checked" if name == axis else ""
        buttons.append(f'<input type="radio" name="axis" id="x-{name}"{checked}><label for="x-{name}">{name}</label>')
        source = base64.b64encode(picture).decode("ascii")
        shown.append(f'<img class="{name}" alt="curves over {name}" src="data:image/png;base64,{source}">')
        rules.append(f"#x-{name}:checked ~ img.{name} {{ display: block }}")
    notes = "".join(f"<p class=note>{html.escape(note)}</p>" for note in comparison.notes)
    body: list[str] = []
    heading = True
    for row in comparison.table:
        if not any(row):
            body.append("</table><table>")
            heading = True
            continue
        tag = "th" if heading else "td"
        heading = False
        body.append("<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row) + "</tr>")
    style = (
        "body { font: 15px/1.4 system-ui, sans-serif; margin: 2em; max-width: 75em } "
        "img { display: none; max-width: 100% } table { border-collapse: collapse; margin: 1em 0 } "
        "td, th { padding: .2em .8em; border-bottom: 1px solid #ddd; text-align: left } "
        ".note { color: #a40 } label { margin-right: 1em } " + " ".join(rules)
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>ebft compare</title><style>{style}</style>'
        f"<h1>Runs compared</h1>{notes}<p>Curves over:</p>{''.join(buttons)}{''.join(shown)}"
        f"<table>{''.join(body)}</table></html>\n"
    )
