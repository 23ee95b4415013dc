"""What the numbers of a study allow to say: values and differences with intervals, and tests that count seeds. What is
assumed and why stands in docs/studies.md, "Statistics".

Two things are drawn at random, the items that are measured (sequences, problems) and the training runs (seeds), and the
variance of a mean over both is the sum of two parts:

    V = V_items + V_runs,    V_items = var_i(d_i) / N,    V_runs = var_s(D_s) / S

where d_i is the difference on item i, averaged over runs, and D_s that of seed s, averaged over items. What is left
over of single (run, item) pairs is in both parts, so V errs on the large side. With one seed only V_items is known.

A metric is a ratio of sums (all tokens of all sequences); items enter by their pulls at it, to first order
(method/measures). Corpus BLEU and chrF are functions of sums over sentences, which are drawn with replacement, the same
draws for every model, as sacrebleu's paired bootstrap does. Their spread is V_items.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist, fmean, variance
from typing import Any, NamedTuple

import numpy as np

from ebft.method.measures import SumsAndCounts, linearized

LEVEL = 0.95
_ENUMERATED = 12  # with so few items, signs are enumerated
DRAWS = 10_000  # no p-value of a bootstrap is below one in so many, and reports correct for dozens of tests
SEED = 12345  # sacrebleu's default


@dataclass(frozen=True, eq=False)
class Measured:
    """A metric of one model: its value, and how each item pulls at it (the pulls add up to 0)."""

    value: float
    # NaN: an item that counts nothing, such as a sequence without contexts. None: nothing is known of items.
    pulls: np.ndarray | None = None
    seed: int | None = None  # None: nothing was trained
    items: tuple[object, ...] = ()  # what they are: only the same ones are compared
    error: float | None = None  # standard error, where nothing is known of items


@dataclass(frozen=True, eq=False)
class Corpus:
    """The translations of one model, as a corpus score sees them."""

    metric: str  # bleu or chrf
    statistics: np.ndarray  # [sentences, numbers that sacrebleu adds up]
    seed: int | None = None  # None: nothing was trained
    items: tuple[object, ...] = ()

    @property
    def value(self) -> float:
        return _score(self.metric, self.statistics.sum(0))


Runs = Sequence[Measured] | Sequence[Corpus]  # of one method, all of one kind


class Interval(NamedTuple):
    low: float
    high: float


@dataclass(frozen=True)
class Summary:
    """A mean over seeds, or a difference of two."""

    value: float
    interval: Interval | None  # None: it cannot be said
    p: float = math.nan  # of a difference from 0, two-sided; NaN if it cannot be said
    items: int = 0
    seeds: int = 0  # training runs behind it; of a difference, of the side that has fewer

    @property
    def error(self) -> float:
        """Half the width of the interval."""
        return math.nan if self.interval is None else (self.interval.high - self.interval.low) / 2


def measured(given: SumsAndCounts, seed: int | None = None, items: tuple[object, ...] = ()) -> Measured:
    """From what each item gives. An item that counts nothing is no observation: it adds no certainty."""
    observed = np.flatnonzero(given.counts)
    value, influences = linearized(given, observed.tolist())
    pulls = np.full(len(given.counts), np.nan)
    pulls[observed] = influences
    return Measured(value, pulls, seed, items)


def summarise(runs: Runs, is_rate: bool = False) -> Summary:
    """The mean over the seeds of one method."""
    value = fmean(run.value for run in runs)
    if all(isinstance(run, Corpus) or run.pulls is not None for run in runs):
        of_items, items, _ = _over_items(value, runs)
        degrees = float(items - 1)
    else:  # best-of-k of a corpus, or a reward: its own error, or how the seeds vary alone
        errors = [run.error for run in runs if isinstance(run, Measured) and run.error is not None]
        of_items = fmean(e * e for e in errors) if len(errors) == len(runs) else 0.0 if len(runs) > 1 else math.nan
        items, degrees = 0, 1e9
    spread, freedom = _combined(of_items, degrees, [[run.value for run in runs]])
    interval = wilson(value, items, spread) if is_rate and items else _interval(value, spread, freedom)
    return Summary(value, interval, items=items, seeds=sum(run.seed is not None for run in runs))


def same_items(*sides: Runs) -> bool:
    """Whether there are runs on all sides, of the same items."""
    runs = [run for side in sides for run in side]
    return all(sides) and all(run.items and run.items == runs[0].items for run in runs)


def difference(mine: Runs, other: Runs) -> Summary:
    """`mine` minus `other`, on the same items. Runs with the same seeds are paired."""
    from scipy.stats import t

    value = fmean(run.value for run in mine) - fmean(run.value for run in other)
    of_items, items, least = _over_items(value, mine, other)
    seeds = [sorted(run.seed for run in runs if run.seed is not None) for runs in (mine, other)]
    # Each side's runs vary on their own; a side with one run has nothing to say about it.
    by_run = [[run.value for run in runs] for runs in (mine, other)]
    if seeds[0] == seeds[1] and all(len(found) > 1 for found in seeds):
        theirs = {run.seed: run.value for run in other}
        by_run = [[run.value - theirs[run.seed] for run in mine]]
    spread, freedom = _combined(of_items, items - 1, by_run)
    p = math.nan
    if (interval := _interval(value, spread, freedom)) is not None:
        far = abs(value) / math.sqrt(spread) if spread else math.inf
        p = 1.0 if value == 0 else max(2 * float(t.sf(far, freedom)), least)
    return Summary(value, interval, p, items, min((len(found) for found in seeds if found), default=0))


def _over_items(value: float, *sides: Runs) -> tuple[float, int, float]:
    """The variance of a mean, or of a difference of two, over items (NaN for fewer than two); how many these are; and
    a p-value that a t test may not be below."""
    runs: list[Any] = [run for side in sides for run in side]
    if isinstance(runs[0], Corpus):
        drawn, items = _moved(sides, draws), len(runs[0].statistics)
        return float(drawn.var(ddof=1)) if items > 1 else math.nan, items, bootstrap_p(value, drawn)
    observed = ~np.all([np.isnan(run.pulls) for run in runs], axis=0)
    items = int(observed.sum())
    if items < 2:
        return math.nan, items, math.nan

    def pulls(run: Any) -> np.ndarray:
        # A mean over these items has to be moved by as much as the mean over those that count in the run.
        return np.nan_to_num(run.pulls[observed]) * (items / (~np.isnan(run.pulls)).sum())

    moved = _moved(sides, pulls)
    # No test of so many items can be surer than this, however equal the differences are; of few, by enumeration.
    few = len(sides) == 2 and items <= _ENUMERATED
    return math.fsum(moved**2) / (items - 1) / items, items, sign_flip_p(value + moved) if few else 2.0 ** (1 - items)


def _moved(sides: Sequence[Runs], of_run: Callable[[Any], np.ndarray]) -> np.ndarray:
    means = [np.mean([of_run(run) for run in side], axis=0) for side in sides]
    return means[0] - means[1] if len(means) > 1 else means[0]


def _combined(of_items: float, freedom: float, by_run: Sequence[Sequence[float]]) -> tuple[float, float]:
    """The sum of the variances over items and over runs, and its degrees of freedom by Welch and Satterthwaite."""
    parts = [(of_items, freedom), *((variance(of) / len(of), len(of) - 1) for of in by_run if len(of) > 1)]
    total = math.fsum(part for part, _ in parts)
    if math.isnan(total) or total == 0:
        return total, freedom
    return total, total**2 / math.fsum(part**2 / degrees for part, degrees in parts)


def _interval(value: float, spread: float, freedom: float) -> Interval | None:
    from scipy.stats import t

    if math.isnan(spread) or math.isnan(value):
        return None
    half = float(t.ppf((1 + LEVEL) / 2, freedom)) * math.sqrt(spread)
    return Interval(value - half, value + half)


def sign_flip_p(differences: Sequence[float] | np.ndarray) -> float:
    """The exact test of symmetry around 0: the share of sign patterns with a sum at least as far from 0."""
    from scipy.stats import permutation_test

    shares = np.asarray(differences) / (math.fsum(map(abs, differences)) or 1.0)

    def far(moved: np.ndarray, axis: int) -> np.ndarray:
        return np.abs(moved.sum(axis)).round(12)  # sums that differ by rounding alone are equal

    options: dict[str, Any] = {"permutation_type": "samples", "alternative": "greater", "n_resamples": np.inf}
    return float(permutation_test((shares,), far, **options).pvalue)


def bootstrap_p(value: float, drawn: np.ndarray) -> float:
    """The share of draws whose difference is as far from their mean as the measured one is from 0: two-sided, where
    sacrebleu's counts one side. A difference of exactly 0 is no difference."""
    if value == 0 or np.isnan(drawn).any():
        return math.nan if value else 1.0
    beyond = np.abs(drawn - drawn.mean()) >= abs(value)
    return float((beyond.sum() + 1) / (len(drawn) + 1))


@cache  # a row of a report is compared with several others
def draws(corpus: Corpus, times: int = DRAWS) -> np.ndarray:
    """The score of each corpus that is drawn from this one: the same sentences for all models."""
    random, sentences = np.random.default_rng(SEED), len(corpus.statistics)
    drawn = (random.integers(sentences, size=sentences) for _ in range(times))
    counts = (np.bincount(places, minlength=sentences) for places in drawn)
    return np.array([_score(corpus.metric, count @ corpus.statistics) for count in counts])


def _score(metric: str, sums: np.ndarray) -> float:
    from sacrebleu.metrics import BLEU, CHRF

    # How sentences were tokenised is in their statistics. It has no public name; the errors of `ebft eval` use it too.
    formula = {"bleu": BLEU, "chrf": CHRF}[metric]()
    return float(formula._compute_score_from_stats(sums.tolist()).score)


def wilson(share: float, trials: float, spread: float = 0.0) -> Interval:
    """Wilson's score interval of a share, which 0 of 3 does not shrink to nothing.

    Of a mean of rates of problems, over seeds, too: these vary no more than passes and fails do, so that a trial for
    each problem is on the safe side; where the seeds vary more, there are as many trials as the variance is worth.
    """
    if spread > 0 and 0 < share < 1:
        trials = min(trials, share * (1 - share) / spread)
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    shrink = 1 + z * z / trials
    middle = (share + z * z / (2 * trials)) / shrink
    half = z / shrink * math.sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2)
    # At 0 and 1 one end is the value itself, but for rounding.
    return Interval(min(share, max(0.0, middle - half)), max(share, min(1.0, middle + half)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted for the number of tests by Holm's method. A test that could not be made (NaN) is none."""
    found = np.array(p_values, dtype=float)
    order = found.argsort()  # with NaN at the end
    factors = np.count_nonzero(~np.isnan(found)) - np.arange(len(found))
    found[order] = np.maximum.accumulate(np.minimum(factors * found[order], 1.0))
    return found.tolist()
