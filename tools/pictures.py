"""`python -m tools.pictures`: the pictures of the method and of its layout in docs/pictures/.

The masks are those that the code computes for the paper's example: 12 tokens, anchors every 4, completions of 4.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import torch
from matplotlib.patches import FancyBboxPatch

from ebft.method.layout import PackedLayout, StridedLayout

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "pictures"
TEXT, MADE, FROZEN, GREY = "#3b6fb6", "#d9822b", "#6b6b6b", "#888888"
COMPLETIONS = torch.tensor([[[[5, 6, 7, 8], [5, 6, 9, 1]], [[2, 3, 4, 4], [7, 7, 1, 2]]]])  # [b, B, n, G]


def method() -> Any:
    """One iteration: rollouts from anchors, features of both, rewards, update."""
    figure, axes = plt.subplots(figsize=(9.5, 4.3))
    axes.set_xlim(0, 19)
    axes.set_ylim(0, 8.6)
    axes.axis("off")
    for token in range(10):
        _token(axes, 0.5 + token * 0.8, 6.6, 0.6, 0.6, TEXT)
    axes.text(0.5, 7.5, "real text: context, then truth", color=TEXT, fontsize=10)
    for anchor, colour in ((3, "#e3a15f"), (6, MADE)):
        start = 0.5 + anchor * 0.8
        axes.plot([start - 0.1] * 2, [6.45, 7.35], color="black", lw=1.2)
        for sample in range(4):
            height = 5.6 - sample * 0.55
            axes.plot([start - 0.1, start], [6.5, height + 0.2], color=GREY, lw=0.6)
            for token in range(3):
                _token(axes, start + token * 0.62, height, 0.46, 0.36, colour)
    axes.text(0.5, 3.1, "n samples of G tokens\nfrom every anchor", color=MADE, fontsize=10, va="top")
    _box(axes, 10.2, 4.6, 3.0, 2.2, "frozen copy\nof the model", FROZEN)
    _arrow(axes, (8.7, 6.9), (10.2, 6.2), TEXT)
    _arrow(axes, (7.4, 4.9), (10.2, 5.2), MADE)
    _box(axes, 14.8, 6.3, 4.0, 1.2, "features of the truth", TEXT)
    _box(axes, 14.5, 4.0, 3.8, 1.2, "features of the samples", MADE)
    _arrow(axes, (13.2, 6.0), (14.8, 6.8), FROZEN)
    _arrow(axes, (13.2, 5.3), (14.5, 4.7), FROZEN)
    _box(
        axes,
        12.6,
        0.9,
        6.2,
        2.0,
        "reward of a sample:\nalignment with the truth minus\nsimilarity to the other samples",
        "#2f7d4f",
    )
    _arrow(axes, (16.8, 4.0), (16.2, 2.9), MADE)
    axes.annotate("", (18.6, 2.9), (18.6, 6.3), arrowprops={"arrowstyle": "-|>", "color": TEXT, "lw": 1.4})
    _box(
        axes,
        5.4,
        0.9,
        5.2,
        2.0,
        "update: samples above their\nbaseline become likelier\n(plus gamma x next-token loss)",
        "#7a4fa3",
    )
    _arrow(axes, (12.6, 1.9), (10.6, 1.9), "#2f7d4f")
    return figure


def _token(axes: Any, x: float, y: float, width: float, height: float, colour: str) -> None:
    axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0.02", fc=colour, ec="none"))


def _box(axes: Any, x: float, y: float, width: float, height: float, text: str, colour: str) -> None:
    axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0.05", fc="white", ec=colour, lw=1.6))
    axes.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=10)


def _arrow(axes: Any, start: tuple[float, float], end: tuple[float, float], colour: str) -> None:
    axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": colour, "lw": 1.4})


def layout() -> Any:
    """Who sees whom, with completions one after the other and with shared prefixes."""
    plain = StridedLayout(context_length=12, horizon=4, stride=4, samples=2)
    tree = plain.as_tree(COMPLETIONS)
    figure, axes = plt.subplots(1, 2, figsize=(10, 5.2), width_ratios=[plain.packed_length, tree.packed_length])
    _mask(axes[0], plain, plain.attention_mask(), "completions one after the other")
    _mask(axes[1], tree, tree.attention_mask()[0], "as a tree: a prefix that two samples share stands once")
    return figure


def _mask(axes: Any, layout: PackedLayout, mask: torch.Tensor, title: str) -> None:
    T, length = layout.context_length, layout.packed_length
    picture = torch.ones(length, length, 3)
    for row in range(length):
        for column in range(length):
            if mask[row, column]:
                colour = TEXT if column < T else MADE
                picture[row, column] = torch.tensor([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    axes.imshow(picture.numpy(), interpolation="nearest")
    axes.set_xticks([i - 0.5 for i in range(length)], minor=True)
    axes.set_yticks([i - 0.5 for i in range(length)], minor=True)
    axes.grid(which="minor", color="#dddddd", lw=0.4)
    axes.tick_params(which="minor", length=0)
    slots = layout.completion_slots.reshape(-1, layout.num_anchors, layout.samples * layout.horizon)[0]
    starts = [T, *(int(slots[b].min()) for b in range(1, layout.num_anchors)), length]
    axes.set_xticks([T / 2 - 0.5], [f"context, {T} tokens"])
    axes.set_yticks(
        [T / 2 - 0.5, *((a + b) / 2 - 0.5 for a, b in pairwise(starts))],
        ["context", *(f"anchor {b + 1}" for b in range(layout.num_anchors))],
    )
    for start in starts[:-1]:
        axes.axhline(start - 0.5, color="black", lw=1)
        axes.axvline(start - 0.5, color="black", lw=1)
    axes.set_title(f"{title}\n{length} tokens", fontsize=9)


if __name__ == "__main__":
    plt.rcParams.update({"svg.hashsalt": "ebft", "svg.fonttype": "none", "font.family": "sans-serif"})
    for draw in (method, layout):
        figure = draw()
        figure.tight_layout()
        figure.savefig(FOLDER / f"{draw.__name__}.svg", metadata={"Date": None})
