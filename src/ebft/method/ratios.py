"""Ratios of sums over sequences, and what two of them differ by on the same sequences, with standard errors.

Each sequence gives a sum and a count (of its tokens, of its contexts); the metric is one total divided by the other, so
that every token or context weighs the same. Sequences are independent of each other and what is inside them is not:
standard errors are over sequences, by the delta method. These are plain numbers, because `ebft compare` does not wait
for torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple


class Estimate(NamedTuple):
    mean: float
    standard_error: float  # NaN for fewer than two observations


class SumsAndCounts(NamedTuple):
    """What each sequence gives."""

    sums: Sequence[float]
    counts: Sequence[float]


def ratio_of_sums(sums: Sequence[float], counts: Sequence[float]) -> Estimate:
    """The total of `sums` divided by that of `counts`. A sequence that counts nothing is no observation."""
    observed = [place for place, count in enumerate(counts) if count]
    ratio, influences = linearized(SumsAndCounts(sums, counts), observed)
    return Estimate(ratio, standard_error(influences))


def paired_difference(mine: SumsAndCounts, other: SumsAndCounts) -> Estimate:
    """`mine` minus `other`: two ratios of sums over the same sequences, in the same order.

    What makes a sequence hard for both cancels, so the standard error is often much smaller than those of the two.
    """
    observed = [place for place, pair in enumerate(zip(mine.counts, other.counts, strict=True)) if any(pair)]
    my_ratio, my_influences = linearized(mine, observed)
    other_ratio, other_influences = linearized(other, observed)
    moved = [a - b for a, b in zip(my_influences, other_influences, strict=True)]
    return Estimate(my_ratio - other_ratio, standard_error(moved))


def linearized(given: SumsAndCounts, observed: Sequence[int]) -> tuple[float, list[float]]:
    """The ratio, and how each sequence pulls at it: to first order the ratio errs by the mean of these pulls, which
    add up to zero."""
    sums, counts = ([column[place] for place in observed] for column in given)
    total = math.fsum(counts)
    if not total > 0:
        raise ValueError("there is nothing to take the mean over: all counts are 0")
    ratio = math.fsum(sums) / total
    mean_count = total / len(counts)
    return ratio, [(s - ratio * count) / mean_count for s, count in zip(sums, counts, strict=True)]


def standard_error(influences: Sequence[float]) -> float:
    """Of a mean of independent values, given by their differences from it."""
    m = len(influences)
    return math.sqrt(math.fsum(i * i for i in influences) / (m - 1) / m) if m > 1 else math.nan


def with_error(value: float | None, error: float | None, sign: Literal["", "+"] = "") -> str:
    """A value and its standard error, which one sequence alone does not have. Differences show their sign: "+".

    Four decimals, or more where the error would be rounded to nothing: `+0.00012 ± 0.00003`. A difference that is 0 on
    every sequence is `0`: nothing changed.
    """
    if value is None:
        return ""
    if sign and value == 0 and error == 0:
        return "0"
    if error is None or math.isnan(error):
        return f"{value:{sign}.4f}"
    if error <= 1e-9 * abs(value):  # nothing, but for rounding
        return f"{value:{sign}.4f} ± 0"
    digits = 4 if error >= 0.00005 else min(9, -math.floor(math.log10(error)))
    return f"{value:{sign}.{digits}f} ± {error:.{digits}f}"
