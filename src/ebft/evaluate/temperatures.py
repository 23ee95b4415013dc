"""Cross-entropy at other temperatures than 1: what a method does to how sharp a model is, apart from what it knows.

Training that draws its rollouts at a temperature below 1 may leave a model whose cross-entropy at 1 is worse only since
it is too sharp, or too flat. The temperature of the least cross-entropy says which: above 1, the model is too sharp.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ebft.method.measures import Estimate, Record, linearized, standard_error, sums_by_metric

TEMPERATURES = tuple(tenths / 10 for tenths in range(5, 16))
TOKENS = {"": "all tokens", "answer_": "answer tokens"}  # starts of metric names


def metric_at(temperature: float, of: str = "") -> str:
    """The name of a cross-entropy among the metrics of records."""
    return f"{of}cross_entropy" + ("" if temperature == 1 else f"_temperature_{temperature:g}")


class Best(NamedTuple):
    temperature: float
    pulls: list[float]  # of each sequence, to first order; none at an edge of the grid

    @property
    def at_edge(self) -> bool:
        return not self.pulls

    @property
    def estimate(self) -> Estimate:
        return Estimate(self.temperature, standard_error(self.pulls))


def best(records: Sequence[Record], of: str = "") -> Best | None:
    """The temperature of the least cross-entropy: the lowest point of the parabola through the best three of the grid.
    None where there are no such tokens, or a broken model."""
    sums = sums_by_metric(records)
    if metric_at(TEMPERATURES[0], of) not in sums:
        return None
    columns = [sums[metric_at(temperature, of)] for temperature in TEMPERATURES]
    observed = [place for place, count in enumerate(columns[0].counts) if count]
    values, pulls = zip(*(linearized(column, observed) for column in columns), strict=True)
    if not all(map(math.isfinite, values)):
        return None
    at = values.index(min(values))
    if at in (0, len(values) - 1):
        return Best(TEMPERATURES[at], [])
    half_step = (TEMPERATURES[at + 1] - TEMPERATURES[at]) / 2
    left, middle, right = values[at - 1 : at + 2]
    slope, bend = right - left, left - 2 * middle + right
    moved = [
        -half_step * ((c - a) / bend - slope * (a - 2 * b + c) / bend**2)
        for a, b, c in zip(*pulls[at - 1 : at + 2], strict=True)
    ]
    return Best(TEMPERATURES[at] - half_step * slope / bend, moved)


def differences(mine: Sequence[Record], other: Sequence[Record]) -> dict[str, Estimate]:
    """Of the best temperatures of two models on the same sequences, paired; without an error if one is at an edge."""
    mine, other = (sorted(records, key=lambda record: record["sequence"]) for records in (mine, other))
    found = {}
    for of in TOKENS:
        ours, theirs = best(mine, of), best(other, of)
        if ours is not None and theirs is not None:
            moved = [a - b for a, b in zip(ours.pulls, theirs.pulls, strict=False)]
            found[f"{of}best_temperature"] = Estimate(ours.temperature - theirs.temperature, standard_error(moved))
    return found
