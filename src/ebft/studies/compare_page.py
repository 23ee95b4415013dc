"""What `ebft compare` draws: curves of runs over steps, tokens, seconds or FLOPs, and an HTML page with all of them."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from typing import Any

from ebft.runtime.messages import plot_label
from ebft.studies.run_reader import Run
from ebft.train.metric_names import NAMES

# Names of horizontal axes: the key in metrics.jsonl, and the label.
AXES = {
    "steps": ("step", "steps"),
    "tokens": ("spent/tokens", "tokens of text"),
    "seconds": ("spent/seconds", "seconds of training"),
    "flops": ("spent/flops", "FLOPs of training"),
}
_STYLE = """
body { font: 15px/1.4 system-ui, sans-serif; margin: 2em; max-width: 75em }
img { display: none; max-width: 100% }
table { border-collapse: collapse; margin: 1em 0 }
td, th { padding: .2em .8em; border-bottom: 1px solid #ddd; text-align: left }
.note { color: #a40 }
label { margin-right: 1em }
"""


def has_axis(runs: Sequence[Run], metrics: Sequence[str], axis: str) -> bool:
    return any(AXES[axis][0] in m.costs for run in runs for metric in metrics for m in run.measurements(metric))


def draw(runs: Sequence[Run], metrics: Sequence[str], axis: str) -> bytes:
    """A PNG with a panel for each metric, in it a curve with its standard errors for each run."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = min(3, len(metrics))
    lines = -(-len(metrics) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(4.8 * columns, 3.4 * lines), squeeze=False)
    for panel in axes.flat[len(metrics) :]:
        panel.set_visible(False)
    legend: dict[str, Any] = {}
    for panel, metric in zip(axes.flat, metrics, strict=False):
        _draw_panel(panel, runs, metric, axis)
        for handle, name in zip(*panel.get_legend_handles_labels(), strict=True):
            legend.setdefault(name, handle)
    figure.legend(legend.values(), legend.keys(), loc="upper center", ncols=min(4, len(legend)), fontsize=9)
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.35 / figure.get_figheight()))
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=120, format="png")
    plt.close(figure)
    return buffer.getvalue()


def _draw_panel(panel: Any, runs: Sequence[Run], metric: str, axis: str) -> None:
    key, label = AXES[axis]
    for number, run in enumerate(runs):
        found = [m for m in run.measurements(metric) if key in m.costs]
        if not found:
            continue
        x, y = [m.costs[key] for m in found], [m.value for m in found]
        color = f"C{number % 10}"
        panel.plot(x, y, color=color, marker="o" if len(found) < 20 else None, markersize=3, label=plot_label(run.name))
        if any(m.error for m in found):
            lower, upper = ([m.value + sign * (m.error or 0.0) for m in found] for sign in (-1, 1))
            panel.fill_between(x, lower, upper, color=color, alpha=0.15)
    panel.set_title(NAMES.get(metric, metric), fontsize=10)
    panel.set_xlabel(label)
    panel.grid(alpha=0.3)


def html_page(table: Sequence[tuple[str, ...]], notes: Sequence[str], pictures: dict[str, bytes], axis: str) -> str:
    """One file without scripts or anything from elsewhere; radio buttons choose the axis."""
    buttons, images, rules = [], [], []
    for name, picture in pictures.items():
        checked = " checked" if name == axis else ""
        buttons.append(f'<input type="radio" name="axis" id="x-{name}"{checked}><label for="x-{name}">{name}</label>')
        source = base64.b64encode(picture).decode("ascii")
        images.append(f'<img class="{name}" alt="curves over {name}" src="data:image/png;base64,{source}">')
        rules.append(f"#x-{name}:checked ~ img.{name} {{ display: block }}\n")
    above = "".join(f"<p class=note>{html.escape(note)}</p>" for note in notes)
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>ebft compare</title>'
        f"<style>{_STYLE}{''.join(rules)}</style>"
        f"<h1>Runs compared</h1>{above}<p>Curves over:</p>{''.join(buttons)}{''.join(images)}"
        f"<table>{_html_rows(table)}</table></html>\n"
    )


def _html_rows(table: Sequence[tuple[str, ...]]) -> str:
    """An empty row ends a table; the first row of each is its heading."""
    rows, tag = [], "th"
    for row in table:
        if not any(row):
            rows.append("</table><table>")
            tag = "th"
            continue
        rows.append("<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row) + "</tr>")
        tag = "td"
    return "".join(rows)
