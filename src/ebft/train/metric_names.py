"""Validation metrics in tables and pictures: their names, and a value with its standard error."""

from __future__ import annotations

import math
from typing import Literal

NAMES = {
    "cross_entropy": "cross-entropy, all tokens",
    "answer_cross_entropy": "cross-entropy, answer tokens",
    "cfm": "feature-matching loss",
    "whitened_proxy": "whitened proxy (larger is better)",
}


def with_error(value: float | None, error: float | None, sign: Literal["", "+"] = "") -> str:
    """A value and its standard error, which one sequence alone does not have. Differences show their sign: "+"."""
    if value is None:
        return ""
    return f"{value:{sign}.4f}" + ("" if error is None or math.isnan(error) else f" ± {error:.4f}")
