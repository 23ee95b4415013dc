"""Validation metrics in tables and pictures: their names, and their values along training."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

NAMES = {
    "cross_entropy": "cross-entropy, all tokens",
    "answer_cross_entropy": "cross-entropy, answer tokens",
    "cfm": "feature-matching loss",
    "whitened_proxy": "whitened proxy (larger is better)",
}
# What rollouts are like: measured in evaluation alone, and neither larger nor smaller is better.
OF_ROLLOUTS = {"distinct": "distinct rollouts", "entropy": "entropy of rollouts"}
# Above 1 a model is too sharp, below too flat.
OF_SHARPNESS = {
    "best_temperature": "temperature of the least cross-entropy, all tokens",
    "answer_best_temperature": "temperature of the least cross-entropy, answer tokens",
}


def smaller_is_better(metric: str) -> bool:
    """Of losses, those of tasks too, and of shares of bad answers; not of other rates, rewards and scores."""
    return any(word in metric for word in ("cross_entropy", "cfm", "loss")) or metric.endswith(
        ("empty", "cut", "no_code")
    )


def title(metric: str) -> str:
    """What a metric is called in a table; `cfm_at_8` is of 8 tokens, `cfm_temperature_1` of samples at 1."""
    if found := re.fullmatch(r"cfm_at_(\d+)", metric):
        return f"{NAMES['cfm']} at {found[1]} token{'s' * (found[1] != '1')}"
    if found := re.fullmatch(r"(.+)_temperature_(.+)", metric):
        return f"{title(found[1])} at temperature {found[2]}"
    return (NAMES | OF_ROLLOUTS | OF_SHARPNESS).get(metric, metric)


def along_training(entries: Iterable[dict[str, Any]], key: str) -> dict[int, dict[str, Any]]:
    """Entries of metrics.jsonl that have a metric, by step; of two at one step, the later.

    Without that of the best model, which was loaded after the last step: a curve would jump back to it.
    """
    return {
        entry["step"]: entry
        for entry in entries
        if isinstance(entry.get(key), int | float)
        and math.isfinite(entry[key])
        and entry.get("model_step", entry["step"]) == entry["step"]
    }
