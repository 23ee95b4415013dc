"""What the numbers of a study allow to say: values and differences with intervals, and tests that count seeds.

Two things are drawn at random: the sequences or problems that are measured, and the training runs (seeds). The models
of a comparison are measured on the same items, so what makes an item hard cancels in a difference; each training run
is one draw of its method. The variance of a mean over runs and items is the sum of both parts:

    V = V_items + V_runs,    V_items = var_i(d_i) / N,    V_runs = var_s(D_s) / S

where d_i is the difference on item i, averaged over runs, and D_s that of seed s, averaged over items. What is left
over of single (run, item) pairs is in both parts, so V errs on the large side. Intervals and tests are Student's t with
Welch and Satterthwaite's degrees of freedom: two seeds that disagree give a wide interval, as they should. With one
seed only V_items is known, and nothing is said about training again.

A metric is a ratio of sums (all tokens of all sequences); items enter by their pulls at it, to first order
(`method.ratios`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean
from typing import Protocol

from ebft.method import student_t
from ebft.method.ratios import SumsAndCounts, linearized

LEVEL = 0.95
_ENUMERATED = 12  # with so few items, signs are enumerated


@dataclass(frozen=True)
class Measured:
    """A metric of one model: its value, and how each item that counts pulls at it (the pulls add up to 0)."""

    value: float
    pulls: tuple[float | None, ...]  # None: an item that counts nothing, such as a sequence without contexts
    seed: int | None = None  # None: nothing was trained
    count: float = 0  # tokens, contexts or problems behind the value


@dataclass(frozen=True)
class Interval:
    low: float
    high: float


@dataclass(frozen=True)
class Summary:
    """A mean over seeds, or a difference of two."""

    value: float
    interval: Interval | None  # None: it cannot be said
    p: float  # of a difference from 0, two-sided; NaN if it cannot be said
    items: int
    seeds: int  # training runs behind it; of a difference, of the side that has fewer

    @property
    def error(self) -> float:
        """Half the width of the interval."""
        return math.nan if self.interval is None else (self.interval.high - self.interval.low) / 2


def measured(given: SumsAndCounts, seed: int | None = None) -> Measured:
    """From what each item gives. An item that counts nothing is no observation: it adds no certainty."""
    observed = [place for place, count in enumerate(given.counts) if count]
    value, influences = linearized(given, observed)
    pulls: list[float | None] = [None] * len(given.counts)
    for place, influence in zip(observed, influences, strict=True):
        pulls[place] = influence
    return Measured(value, tuple(pulls), seed, math.fsum(given.counts))


def _mean_pulls(*sides: Sequence[Measured]) -> list[list[float]]:
    """Of each side, the mean over its runs, for every item that counts in any run of any side."""
    runs = [run for side in sides for run in side]
    observed = [place for place in range(len(runs[0].pulls)) if any(run.pulls[place] is not None for run in runs)]

    def pulls(run: Measured) -> list[float]:
        # A mean over these items has to be moved by as much as the mean over those that count in the run.
        scale = len(observed) / sum(pull is not None for pull in run.pulls)
        return [(run.pulls[place] or 0.0) * scale for place in observed]

    return [[fmean(of_item) for of_item in zip(*map(pulls, side), strict=True)] for side in sides]


def summarise(runs: Sequence[Measured], is_rate: bool = False) -> Summary:
    """The mean over the seeds of one method. A rate has Wilson's interval, which 0 of 3 does not shrink to nothing."""
    value = fmean(run.value for run in runs)
    (pulls,) = _mean_pulls(runs)
    variance, freedom = _variance(pulls, [run.value for run in runs])
    items = len(pulls)
    interval = wilson_of_mean(value, items, variance) if is_rate else _interval(value, variance, freedom)
    return Summary(value, interval, math.nan, items, sum(run.seed is not None for run in runs))


def difference(mine: Sequence[Measured], other: Sequence[Measured]) -> Summary:
    """`mine` minus `other`, on the same items. Runs with the same seeds are paired."""
    value = fmean(run.value for run in mine) - fmean(run.value for run in other)
    pulls = [mine_i - other_i for mine_i, other_i in zip(*_mean_pulls(mine, other), strict=True)]
    by_run, trained = of_runs(mine, other)
    variance, freedom = _variance(pulls, *by_run)
    p = _p_value(value, pulls, variance, freedom)
    return Summary(value, _interval(value, variance, freedom), p, len(pulls), trained)


class _Run(Protocol):
    @property
    def value(self) -> float: ...

    @property
    def seed(self) -> int | None: ...


def of_runs(mine: Sequence[_Run], other: Sequence[_Run]) -> tuple[list[list[float]], int]:
    """What varies between the runs of a difference, and how many there are on the side that has fewer."""
    seeds = [sorted(run.seed for run in runs if run.seed is not None) for runs in (mine, other)]
    trained = min((len(found) for found in seeds if found), default=0)
    if seeds[0] == seeds[1] and all(len(found) > 1 for found in seeds):
        theirs = {run.seed: run.value for run in other}
        return [[run.value - theirs[run.seed] for run in mine]], trained
    # Each side's runs vary on their own; a side with one run has nothing to say about it.
    return [[run.value for run in runs] for runs in (mine, other)], trained


def student_summary(value: float, of_items: float, items: int, by_run: Sequence[Sequence[float]]) -> Summary:
    """From a variance over items that is known by other means, NaN if it is not, and the values of runs."""
    if math.isnan(of_items):
        return Summary(value, None, math.nan, items, 0)
    variance, freedom = _combined((of_items, items - 1), by_run)
    p = 1.0
    if value:
        p = student_t.two_sided_p(value / math.sqrt(variance) if variance else math.inf, freedom)
    return Summary(value, _interval(value, variance, freedom), p, items, 0)


def _variance(pulls: Sequence[float], *by_run: Sequence[float]) -> tuple[float, float]:
    """V, and its degrees of freedom; NaN for fewer than two items."""
    if len(pulls) < 2:
        return math.nan, math.nan
    return _combined((math.fsum(p * p for p in pulls) / (len(pulls) - 1) / len(pulls), len(pulls) - 1), by_run)


def _combined(of_items: tuple[float, int], by_run: Sequence[Sequence[float]]) -> tuple[float, float]:
    """The sum of the variances over items and over runs, and its degrees of freedom by Welch and Satterthwaite."""
    parts = [of_items]
    for values in by_run:
        if len(values) > 1:
            mean = fmean(values)
            parts.append(
                (math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values), len(values) - 1)
            )
    variance = math.fsum(part for part, _ in parts)
    if variance == 0:
        return 0.0, float(parts[0][1])
    return variance, variance**2 / math.fsum(part**2 / freedom for part, freedom in parts)


def _interval(value: float, variance: float, freedom: float) -> Interval | None:
    if math.isnan(variance) or math.isnan(value):
        return None
    half = student_t.quantile((1 + LEVEL) / 2, freedom) * math.sqrt(variance)
    return Interval(value - half, value + half)


def _p_value(value: float, pulls: Sequence[float], variance: float, freedom: float) -> float:
    """Of the t test; for few items at least what flipping their signs gives, which a t test can be far below."""
    if math.isnan(variance) or math.isnan(value):
        return math.nan
    if value == 0:
        return 1.0
    p = student_t.two_sided_p(value / math.sqrt(variance) if variance else math.inf, freedom)
    # No test of so many items can be surer than this, however equal the differences are.
    floor = 2.0 ** (1 - len(pulls))
    if len(pulls) <= _ENUMERATED:
        floor = sign_flip_p([value + pull for pull in pulls])
    return max(p, floor)


def sign_flip_p(differences: Sequence[float]) -> float:
    """The exact test of symmetry around 0: the share of sign patterns with a sum at least as far from 0."""
    observed = abs(math.fsum(differences))
    slack = 1e-12 * math.fsum(abs(d) for d in differences)
    patterns = itertools.product((1, -1), repeat=len(differences))
    sums = [abs(math.fsum(sign * d for sign, d in zip(signs, differences, strict=True))) for signs in patterns]
    return sum(found >= observed - slack for found in sums) / len(sums)


def wilson(passed: float, trials: float, level: float = LEVEL) -> Interval:
    """Wilson's score interval of a share."""
    if not 0 <= passed <= trials or not trials > 0:
        raise ValueError(f"passed={passed} must lie between 0 and trials={trials}, which must be above 0")
    z = NormalDist().inv_cdf((1 + level) / 2)
    share, shrink = passed / trials, 1 + z * z / trials
    middle = (share + z * z / (2 * trials)) / shrink
    half = z / shrink * math.sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2)
    # At 0 and 1 one end is the value itself, but for rounding.
    return Interval(min(share, max(0.0, middle - half)), max(share, min(1.0, middle + half)))


def wilson_of_mean(share: float, problems: int, variance: float) -> Interval:
    """Wilson's interval of a mean of rates of problems, over seeds.

    Rates of problems vary no more than passes and fails do, so `problems` trials are on the safe side; where the seeds
    vary more than that, there are as many trials as the variance is worth.
    """
    trials = float(problems)
    if variance > 0 and 0 < share < 1:
        trials = min(trials, share * (1 - share) / variance)
    return wilson(share * trials, trials)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted for the number of tests by Holm's method. A test that could not be made (NaN) is none."""
    order = sorted((p, place) for place, p in enumerate(p_values) if not math.isnan(p))
    adjusted, largest = [math.nan] * len(p_values), 0.0
    for rank, (p, place) in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p))
        adjusted[place] = largest
    return adjusted
