"""pass@k: the chance that at least one of k samples passes, estimated without bias from n samples.

With c of n samples passing, the share of the subsets of size k that hold a passing one is 1 - C(n-c, k) / C(n, k)
(Chen et al. 2021). It is computed here in whole numbers, so nothing is lost for n != k; for n < k there is no unbiased
estimate, and none is given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any


def pass_at_k(samples: int, passed: int, k: int) -> Fraction:
    """The estimate for one problem with `passed` of `samples` samples passing."""
    if not 0 <= passed <= samples:
        raise ValueError(f"passed={passed} is not between 0 and samples={samples}")
    if k < 1:
        raise ValueError(f"k={k} must be at least 1")
    if samples < k:
        raise ValueError(f"pass@{k} needs at least {k} samples of a problem; there are {samples}")
    return 1 - Fraction(math.comb(samples - passed, k), math.comb(samples, k))


def mean_pass_at_k(counts: Sequence[tuple[int, int]], k: int) -> tuple[float, float | None]:
    """Mean over problems of (samples, passed), and its standard error over problems (None for a single problem)."""
    estimates = [pass_at_k(samples, passed, k) for samples, passed in counts]
    if not estimates:
        raise ValueError("there are no problems to average over")
    mean = Fraction(sum(estimates), len(estimates))
    if len(estimates) == 1:
        return float(mean), None
    variance = sum(((estimate - mean) ** 2 for estimate in estimates), Fraction(0)) / (len(estimates) - 1)
    return float(mean), math.sqrt(variance / len(estimates))


def summarise(counts: Sequence[tuple[int, int]], ks: Sequence[int]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """pass@k by name, each with its standard error and the number of problems, and a note on each that is missing."""
    metrics: dict[str, dict[str, Any]] = {}
    fewest = min((samples for samples, _ in counts), default=0)
    for k in (k for k in ks if counts and k <= fewest):
        mean, error = mean_pass_at_k(counts, k)
        metrics[f"pass@{k}"] = {"value": mean, "standard_error": error, "count": len(counts)}
    missing = ", ".join(f"pass@{k}" for k in ks if counts and k > fewest)
    notes = [f"not reported: {missing}; pass@k needs k samples of every problem, one has {fewest}"] if missing else []
    return metrics, notes
