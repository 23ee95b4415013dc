"""The figures of the studies (docs/results.md keeps two): mostly validation over epochs (`validation.json`).

python results/replication/figure.py docs/pictures
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from over_studies import PAIRS, by_study, pooled

PANELS = {
    "cross_entropy": "cross-entropy, all tokens",
    "answer_cross_entropy": "cross-entropy, answers",
    "cfm": "feature-matching loss",
}
# By study and the names of its runs without their seeds: the learning rate that validation chose.
FIGURES = {
    "little-data": {
        ("little-1000", "sft,learning_rate=0.0001"): ("SFT on answers", "#cc79a7"),
        ("little-1000", "sft-all,learning_rate=5e-05"): ("SFT on all tokens", "#e69f00"),
        ("little-1000", "ebft-none,learning_rate=5e-05"): ("EBFT, no whitening", "#d55e00"),
        ("little-1000", "ebft-both,learning_rate=5e-05"): ("EBFT, whitening both", "#009e73"),
    },
    "little-data-ends": {  # without ebft-whole, whose own validation leaves the ends out
        ("little-1000-ends", "sft-packed"): ("SFT, 1e-4", "#e69f00"),
        ("little-1000-ends", "ebft,gamma=1"): ("EBFT, gamma 1, 5e-5", "#0072b2"),
        ("little-1000-ends", "ebft,gamma=0.3"): ("EBFT, gamma 0.3, 5e-5", "#d55e00"),
    },
    "little-data-300-ends": {
        ("little-300-ends", "sft-packed"): ("SFT, 1e-4", "#e69f00"),
        ("little-300-ends", "ebft,gamma=1"): ("EBFT, gamma 1, 5e-5", "#0072b2"),
        ("little-300-ends", "ebft,gamma=0.3"): ("EBFT, gamma 0.3, 5e-5", "#d55e00"),
    },
    "little-data-packed": {
        ("little-1000-packed", "sft-packed,learning_rate=0.0001"): ("SFT, 1e-4 (chosen)", "#e69f00"),
        ("little-1000-packed", "sft-packed,learning_rate=5e-05"): ("SFT, 5e-5", "#cc79a7"),
        ("little-1000-packed", "sft-packed,learning_rate=2e-05"): ("SFT, 2e-5", "#009e73"),
        ("little-1000-packed", "ebft,gamma=1"): ("EBFT, gamma 1, 5e-5", "#0072b2"),
        ("little-1000-packed", "ebft,gamma=0.3"): ("EBFT, gamma 0.3, 5e-5", "#d55e00"),
    },
    "little-data-gamma": {
        ("little-1000", "sft-all,learning_rate=5e-05"): ("SFT on all tokens", "#e69f00"),
        ("little-1000-gamma", "ebft-none,gamma=1,learning_rate=5e-05"): ("EBFT, gamma 1", "#0072b2"),
        ("little-1000", "ebft-none,learning_rate=5e-05"): ("EBFT, gamma 0.3", "#d55e00"),
        ("little-1000-gamma", "ebft-none,gamma=0,learning_rate=2e-05"): ("EBFT, gamma 0", "#000000"),
    },
    "little-data-300": {
        ("little-300", "sft,learning_rate=0.0001"): ("SFT on all tokens", "#e69f00"),
        ("little-300", "ebft,gamma=1,learning_rate=5e-05"): ("EBFT, gamma 1", "#0072b2"),
        ("little-300", "ebft,gamma=0.3,learning_rate=5e-05"): ("EBFT, gamma 0.3", "#d55e00"),
    },
    "little-data-3000": {
        ("little-3000", "sft,learning_rate=5e-05"): ("SFT, a document a row", "#e69f00"),
        ("little-3000", "sft-packed,learning_rate=0.0001"): ("SFT, EBFT's sequences", "#009e73"),
        ("little-3000", "ebft,gamma=1"): ("EBFT, gamma 1", "#0072b2"),
        ("little-3000", "ebft,gamma=0.3"): ("EBFT, gamma 0.3", "#d55e00"),
        ("little-3000", "ebft-faster"): ("EBFT, gamma 1, 1e-4", "#000000"),
    },
    "plenty": {
        ("plenty", "sft-packed,learning_rate=0.0001"): ("SFT, EBFT's sequences, 1e-4", "#e69f00"),
        ("plenty", "sft-packed,learning_rate=5e-05"): ("SFT, EBFT's sequences, 5e-5", "#cc79a7"),
        ("plenty", "ebft"): ("EBFT, gamma 1, 1e-4", "#0072b2"),
    },
    "little-data-more": {
        ("little-1000-more", "sft-packed,learning_rate=0.0001"): ("SFT", "#e69f00"),
        ("little-1000-more", "sft-linear,learning_rate=0.0002"): ("SFT, linear decay", "#009e73"),
        ("little-1000-more", "sft-neftune"): ("SFT, NEFTune", "#cc79a7"),
        ("little-1000-more", "sft-lora,learning_rate=0.001"): ("SFT, LoRA", "#000000"),
        ("little-1000-more", "ebft-linear,learning_rate=0.0001"): ("EBFT, linear decay", "#0072b2"),
    },
    "mbpp": {
        ("mbpp", "sft-packed,learning_rate=0.0001"): ("SFT", "#e69f00"),
        ("mbpp", "ebft,gamma=1"): ("EBFT, gamma 1", "#0072b2"),
        ("mbpp", "ebft,gamma=0.3"): ("EBFT, gamma 0.3", "#d55e00"),
    },
    "mbpp-rates": {
        ("mbpp-rates", "sft-packed"): ("SFT, 5e-5", "#e69f00"),
        ("mbpp-rates", "sft-faster"): ("SFT, 1e-4", "#cc79a7"),
        ("mbpp-rates", "ebft"): ("EBFT, gamma 0.3, 5e-5", "#d55e00"),
        ("mbpp-rates", "ebft-faster"): ("EBFT, gamma 0.3, 1e-4", "#0072b2"),
    },
    "translation": {
        ("translation", "sft-packed,learning_rate=2e-05"): ("SFT, EBFT's sequences", "#e69f00"),
        ("translation", "ebft,gamma=1"): ("EBFT, gamma 1", "#0072b2"),
        ("translation", "ebft,gamma=0.3"): ("EBFT, gamma 0.3", "#d55e00"),
    },
    "little-data-options": {
        ("little-1000-options", "rollouts-16"): ("16 rollouts", "#0072b2"),
        ("little-1000-options", "temperature,temperature=1"): ("temperature 1", "#009e73"),
        ("little-1000-options", "ebft"): ("4 rollouts, temperature 0.6", "#d55e00"),
        ("little-1000-options", "printed"): ("printed formula", "#56b4e9"),
        ("little-1000-options", "answers"): ("whole answers", "#e69f00"),
        ("little-1000-options", "temperature,temperature=0.3"): ("temperature 0.3", "#cc79a7"),
        ("little-1000-options", "rollouts-2"): ("2 rollouts", "#000000"),
    },
    "raw-code": {
        ("raw-code", "sft-packed"): ("SFT, EBFT's sequences", "#e69f00"),
        ("raw-code", "ebft"): ("EBFT, gamma 1", "#0072b2"),
    },
}

# Where the feature-matching loss is not measured alike.
CROSS_ENTROPIES = ("little-data-options",)

# By the beginning of the models' names.
TRADE = {
    "base": ("before training", "#000000"),
    "sft-packed": ("SFT", "#e69f00"),
    "ebft": ("EBFT", "#d55e00"),
    "rlvr,": ("RLVR", "#cc79a7"),
    "rlvr-warm": ("SFT, then RLVR", "#009e73"),
}
SOLVED = {
    "base": ("before training", "#000000"),
    "sft-packed": ("SFT", "#e69f00"),
    "ebft,gamma=1": ("EBFT, gamma 1", "#0072b2"),
    "ebft,gamma=0.3": ("EBFT, gamma 0.3", "#d55e00"),
}
TITLES = {
    "little-300-ends": "300 documents",
    "little-1000-ends": "1,000 documents",
    "little-1000-more": "1,000, decaying rates",
    "mbpp-rates": "MBPP, equal rates",
    "mbpp": "MBPP",
    "raw-code": "raw Python",
}
WITHOUT_START = (
    "little-data-options",
    "little-data-3000",
    "little-data-more",
    "mbpp",
    "mbpp-rates",
    "translation",
    "plenty",
    "raw-code",
)  # where all begin far above what differs between them


def main(folder: Path) -> None:
    for name, shown in FIGURES.items():
        panels = {metric: title for metric, title in PANELS.items() if metric != "cfm" or name not in CROSS_ENTROPIES}
        _draw(shown, panels, int(name in WITHOUT_START), folder / f"{name}.png")
    _draw_trade(folder / "translation-rlvr.png")
    _draw_solved(folder / "little-data-sampled.png")
    _draw_over_studies(folder / "over-studies.png")


def _draw(shown: dict[tuple[str, str], tuple[str, str]], panels: dict[str, str], first: int, target: Path) -> None:
    figure, axes = plt.subplots(1, len(panels), figsize=(4 * len(panels), 3.6))
    for (study, method), (label, color) in shown.items():
        seeds = [points[first:] for points in _validations(study)[method]]
        seeds = [points[: min(map(len, seeds))] for points in seeds]  # early stopping may end one sooner
        epochs = [point["epoch"] for point in seeds[0]]
        for panel, metric in zip(axes, panels, strict=True):
            values = [[points[place][metric] for points in seeds] for place in range(len(epochs))]
            _draw_seeds(panel, epochs, values, label, color)
    for panel, title in zip(axes, panels.values(), strict=True):
        panel.set_title(title, fontsize=10)
        panel.set_xlabel("epochs")
        panel.grid(alpha=0.3)
    columns = 5 if len(panels) > 2 else 4
    figure.legend(*axes[0].get_legend_handles_labels(), loc="upper center", ncols=columns, fontsize=9)
    figure.tight_layout(rect=(0, 0, 1, 0.92 if len(shown) <= columns else 0.86))
    figure.savefig(target, dpi=110)


def _draw_seeds(panel: Any, places: Sequence[float], values: list[list[float]], label: str, color: str) -> None:
    """The means over seeds, and their range."""
    panel.plot(places, [sum(v) / len(v) for v in values], "o-", color=color, markersize=3, label=label)
    panel.fill_between(places, [min(v) for v in values], [max(v) for v in values], color=color, alpha=0.2)


def _draw_trade(target: Path) -> None:
    """What RLVR with BLEU gains in BLEU, and what it loses in cross-entropy: models of the study, on its test data."""
    figure, axis = plt.subplots(figsize=(5.5, 3.6))
    for method, (label, color) in TRADE.items():
        files = sorted((Path(__file__).parent / "translation" / "evaluations").glob(f"{method}*.json"))
        tasks = [json.loads(file.read_text())["tasks"] for file in files]
        losses = [one["calibration"]["metrics"]["answer_cross_entropy"]["value"] for one in tasks]
        scores = [one["translation"]["metrics"]["greedy_bleu"]["value"] for one in tasks]
        axis.plot(losses, scores, "o", color=color, label=label)
    axis.set_xlabel("cross-entropy, answers")
    axis.set_ylabel("BLEU, greedy")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=9)
    figure.tight_layout()
    figure.savefig(target, dpi=110)


def _draw_solved(target: Path) -> None:
    """Problems solved by one of k samples: means over seeds, and their range."""
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.6))
    ks = (1, 4, 16)
    for panel, (task, title) in zip(axes, {"humaneval": "HumanEval", "mbpp": "MBPP"}.items(), strict=True):
        for method, (label, color) in SOLVED.items():
            files = sorted((Path(__file__).parent / "little-1000-sampled" / "evaluations").glob(f"{method}*.json"))
            metrics = [json.loads(file.read_text())["tasks"][task]["metrics"] for file in files]
            values = [[found[f"pass@{k}"]["value"] for found in metrics] for k in ks]
            _draw_seeds(panel, ks, values, label, color)
        panel.set_xscale("log", base=2)
        panel.set_xticks(ks, [f"pass@{k}" for k in ks])
        panel.set_title(title, fontsize=10)
        panel.set_ylim(0)
        panel.grid(alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="upper center", ncols=4, fontsize=9)
    figure.tight_layout(rect=(0, 0, 1, 0.92))
    figure.savefig(target, dpi=110)


def _draw_over_studies(target: Path) -> None:
    """EBFT less SFT in per cent of SFT's value, with 95 % intervals: every study, and all of them pooled."""
    metrics = PANELS | {"cfm_temperature_1": "feature-matching loss at temperature 1"}
    del metrics["answer_cross_entropy"]
    rows = [*dict.fromkeys(study for pairs in PAIRS.values() for study in pairs), "all of them"]
    figure, axes = plt.subplots(1, len(metrics), figsize=(4 * len(metrics), 3.6), sharey=True)
    for panel, (metric, title) in zip(axes, metrics.items(), strict=True):
        for shift, color, gamma in ((-0.15, "#d55e00", "gamma 0.3"), (0.15, "#0072b2", "gamma 1")):
            found = by_study(PAIRS[gamma], metric)
            mean, _, half = pooled(list(found.values()))
            places = [rows.index(study) + shift for study in [*found, "all of them"]]
            values = [value for value, _ in found.values()] + [mean]
            errors = [1.96 * error for _, error in found.values()] + [half]
            panel.errorbar(values, places, xerr=errors, fmt="o", color=color, markersize=4, label=f"EBFT, {gamma}")
        panel.axvline(0, color="#000000", linewidth=0.8)
        panel.set_title(title, fontsize=10)
        panel.set_xlabel("% above SFT")
        panel.set_xlim(-4, 4)
        panel.grid(alpha=0.3)
    axes[0].set_yticks(range(len(rows)), [TITLES.get(row, row) for row in rows])
    axes[0].invert_yaxis()
    figure.legend(*axes[0].get_legend_handles_labels(), loc="upper center", ncols=2, fontsize=9)
    figure.tight_layout(rect=(0, 0, 1, 0.92))
    figure.savefig(target, dpi=110)


def _validations(study: str) -> dict[str, list[list[dict[str, Any]]]]:
    """By method: the validations of every seed that has finished."""
    runs = json.loads((Path(__file__).parent / study / "validation.json").read_text())
    found = defaultdict(list)
    for name, run in runs.items():
        if run["kept_step"] is not None:
            found[name.rpartition(",seed=")[0]].append(run["validations"])
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
