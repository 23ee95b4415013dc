"""The temperature of the least cross-entropy, on records written by hand."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from ebft.method.measures import TEMPERATURES, differences, estimates, metric_at

COUNTS = [3, 5, 4, 8, 6]
LOWEST = [0.83, 0.97, 1.02, 0.9, 0.88]


def records(lowest: list[float]) -> list[dict[str, Any]]:
    """Sequences whose cross-entropy is a parabola over the temperature, each with its own lowest point."""
    names = {t: metric_at(t).replace("cross_entropy", "log_probs") for t in TEMPERATURES}
    return [
        {"sequence": n, "tokens": count, **{name: -count * (1 + 2 * (t - low) ** 2) for t, name in names.items()}}
        for n, (low, count) in enumerate(zip(lowest, COUNTS, strict=True))
    ]


def test_the_lowest_point_of_a_parabola_is_found_between_the_points_of_the_grid() -> None:
    mean = sum(low * count for low, count in zip(LOWEST, COUNTS, strict=True)) / sum(COUNTS)
    # The lowest point of a sum of parabolas is the mean of theirs, whose error is that of a ratio of sums.
    pulls = [count * (low - mean) for low, count in zip(LOWEST, COUNTS, strict=True)]
    error = math.sqrt(sum(p * p for p in pulls) / 4 / 5) / (sum(COUNTS) / 5)
    assert estimates(records(LOWEST))["best_temperature"] == (pytest.approx(mean), pytest.approx(error))


def test_edges_of_the_grid_no_tokens_and_broken_models() -> None:
    for lowest, edge in ([0.3] * 5, 0.5), ([1.7] * 5, 1.5):
        temperature, error = estimates(records(lowest))["best_temperature"]
        assert temperature == edge
        assert math.isnan(error)
    broken = records([1.0] * 5)
    broken[0]["log_probs_temperature_0.7"] = None
    for none in estimates([]), estimates(broken):
        assert "best_temperature" not in none
    assert "answer_best_temperature" not in estimates(records([1.0] * 5))


def test_differences_are_paired() -> None:
    ours = records([low + 0.13 for low in LOWEST])
    random.Random(0).shuffle(ours)
    found = differences(ours, records(LOWEST))["best_temperature"]
    assert found == (pytest.approx(0.13), pytest.approx(0, abs=1e-9))
    assert math.isnan(differences(records([0.3] * 5), records(LOWEST))["best_temperature"].standard_error)
