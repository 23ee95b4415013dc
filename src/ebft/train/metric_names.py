"""Validation metrics in tables and pictures: their names."""

from __future__ import annotations

NAMES = {
    "cross_entropy": "cross-entropy, all tokens",
    "answer_cross_entropy": "cross-entropy, answer tokens",
    "cfm": "feature-matching loss",
    "whitened_proxy": "whitened proxy (larger is better)",
}
