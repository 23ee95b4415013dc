r"""Draws the seconds of each phase of an iteration, from results of step.py, or how they grow, from one of grid.py.

cd benchmarks/results
python ../picture.py step-h200-{qwen2.5-1.5b-{trees,sharing},llama3.2-1b,smollm2-135m-real{,-n8}}.json \
    --output ../../docs/speed.png
python ../picture.py grid-h200-smollm2-135m.json --output ../../docs/speed-grid.png
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from command_line import Parser

COLORS = {
    "rollout": "#4c78a8",
    "features": "#72b7b2",
    "rewards": "#e45756",
    "update": "#f58518",
    "optimizer": "#54a24b",
}


def main() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    results = [parser.read_json(file) for file in args.files]
    for file, result in zip(args.files, results, strict=True):
        if "rows" not in result and "flops" not in result:
            parser.error(f"{file} has no `flops`: it was written by an older step.py; measure it again")
    figure = growth(results[0]) if "rows" in results[0] else phases(results)
    figure.savefig(args.output, dpi=120)


def phases(results: list[dict[str, Any]]) -> Figure:
    """Measured seconds by phase, above what the products alone would take."""
    figure, axes = plt.subplots(len(results), 1, figsize=(8.5, 1.0 + 1.3 * len(results)), squeeze=False)
    for axis, result in zip(axes[:, 0], results, strict=True):
        seconds, left = result["seconds"]["packed"], 0.0
        for phase, color in COLORS.items():
            width = seconds[phase]["median"]
            axis.barh(1, width, left=left, color=color, label=phase)
            if width > 0.08 * seconds["iteration"]["median"]:
                axis.text(left + width / 2, 1, short(width), ha="center", va="center", color="white")
            left += width
        floor = 0.0
        for phase in ("rollout", "features", "update"):
            width = result["flops"][phase] / result["matrix_rate"]
            axis.barh(0, width, left=floor, color=COLORS[phase], alpha=0.5)
            floor += width
        axis.text(floor, 0, f"  floor {short(floor)}", va="center")
        axis.set_yticks([1, 0], ["measured", "products at the matrix rate"])
        settings = result["settings"]
        axis.set_title(
            f"{settings['size']}, {settings['sequences']} sequences of {settings['context_length']} tokens, "
            f"G={settings['horizon']}, s={settings['stride']}, n={settings['samples']}{kind(settings)}: "
            f"{short(seconds['iteration']['median'])}",
            fontsize=10,
        )
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1, 0].set_xlabel("seconds")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(labels), frameon=False)
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    return figure


def kind(settings: dict[str, Any]) -> str:
    if settings.get("model") is not None:
        return ", real text"
    return ", drawn to agree" if settings.get("sharing") else ""


def short(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.2 else f"{seconds:.3f} s"


def growth(result: dict[str, Any]) -> Figure:
    """Seconds and memory against the number of generated tokens, n B G in all sequences; one colour per context."""
    rows = [row for row in result["rows"] if row["horizon"] == row["stride"] and "error" not in row]
    figure, (time, memory) = plt.subplots(1, 2, figsize=(9, 3.6))
    for color, T in zip(COLORS.values(), sorted({row["context_length"] for row in rows}), strict=False):
        mine = sorted((row for row in rows if row["context_length"] == T), key=lambda row: row["packed_tokens"])
        generated = [row["packed_tokens"] - result["settings"]["sequences"] * T for row in mine]
        time.scatter(generated, [row["seconds"]["iteration"] for row in mine], color=color, s=14, label=f"T = {T}")
        memory.scatter(generated, [row["peak_memory_bytes"] / 2**30 for row in mine], color=color, s=14)
    for axis, name in ((time, "seconds an iteration"), (memory, "peak memory, GiB")):
        axis.set(xlabel="generated tokens: n B G in all sequences", ylabel=name, ylim=(0, None))
        axis.spines[["top", "right"]].set_visible(False)
    time.legend(frameon=False)
    figure.tight_layout()
    return figure


if __name__ == "__main__":
    main()
