"""Student's t distribution, from the incomplete beta function: the package has no need for scipy otherwise."""

from __future__ import annotations

import math
from statistics import NormalDist


def two_sided_p(t: float, freedom: float) -> float:
    """The chance of a value at least as far from 0."""
    if math.isnan(t) or not freedom > 0:
        return math.nan
    if math.isinf(t):
        return 0.0
    return _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def quantile(level: float, freedom: float) -> float:
    """The t that so much of the distribution lies below, for a level above one half."""
    if not 0.5 < level < 1 or not freedom > 0:
        raise ValueError(f"level={level} must lie between 0.5 and 1, and freedom={freedom} above 0")
    constant = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(freedom * math.pi) / 2
    # Newton's method. Tails are thicker than the normal distribution's, and thin out ever more slowly: it comes from
    # below and never goes too far.
    t, further = 0.0, NormalDist().inv_cdf(level)
    while further > t * (1 + 1e-12):
        t = further
        density = math.exp(constant - (freedom + 1) / 2 * math.log1p(t * t / freedom))
        further = t + (two_sided_p(t, freedom) / 2 - (1 - level)) / density
    return t


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b)."""
    if x <= 0 or x >= 1:
        return min(max(x, 0.0), 1.0)
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    if x < (a + 1) / (a + b + 2):
        return math.exp(front) * _continued_fraction(a, b, x) / a
    return 1 - math.exp(front) * _continued_fraction(b, a, 1 - x) / b


def _continued_fraction(a: float, b: float, x: float, terms: int = 10_000) -> float:
    """Of the incomplete beta function, by Lentz's method."""
    tiny = 1e-300
    c, d = 1.0, 1 - (a + b) * x / (a + 1)
    d = 1 / (d if abs(d) > tiny else tiny)
    found = d
    for m in range(1, terms):
        for step in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 + step * d
            c = 1 + step / c
            d = 1 / (d if abs(d) > tiny else tiny)
            c = c if abs(c) > tiny else tiny
            found *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return found
