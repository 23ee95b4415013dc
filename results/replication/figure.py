"""The little-data figure: validation over epochs, from `validation.json` of a study.

python results/replication/figure.py results/replication/little-1000/validation.json docs/pictures/little-data.png
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

PANELS = {
    "cross_entropy": "cross-entropy, all tokens",
    "answer_cross_entropy": "cross-entropy, answers",
    "cfm": "feature-matching loss",
}
# By the names of the runs, without their seeds: the learning rate that validation chose.
SHOWN = {
    "sft,learning_rate=0.0001": ("SFT on answers", "#cc79a7"),
    "sft-all,learning_rate=5e-05": ("SFT on all tokens", "#e69f00"),
    "ebft-none,learning_rate=5e-05": ("EBFT, no whitening", "#d55e00"),
    "ebft-both,learning_rate=5e-05": ("EBFT, whitening both", "#009e73"),
}


def main(source: str, target: str) -> None:
    with open(source) as file:
        runs: dict[str, dict[str, Any]] = json.load(file)
    by_method = defaultdict(list)
    for name, run in runs.items():
        by_method[name.rpartition(",seed=")[0]].append(run["validations"])
    figure, axes = plt.subplots(1, len(PANELS), figsize=(12, 3.6))
    for panel, (metric, title) in zip(axes, PANELS.items(), strict=True):
        for method, (label, color) in SHOWN.items():
            seeds = by_method[method]
            epochs = [point["epoch"] for point in seeds[0]]
            values = [[points[place][metric] for points in seeds] for place in range(len(epochs))]
            panel.plot(epochs, [sum(v) / len(v) for v in values], "o-", color=color, markersize=3, label=label)
            panel.fill_between(epochs, [min(v) for v in values], [max(v) for v in values], color=color, alpha=0.2)
        panel.set_title(title, fontsize=10)
        panel.set_xlabel("epochs")
        panel.grid(alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="upper center", ncols=4, fontsize=9)
    figure.tight_layout(rect=(0, 0, 1, 0.92))
    figure.savefig(target, dpi=110)


if __name__ == "__main__":
    main(*sys.argv[1:])
