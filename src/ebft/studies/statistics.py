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
(method/measures). Corpus BLEU and chrF are no means over sentences, but functions of sums over them: corpora are drawn
from the sentences with replacement, the same draws for every model, as sacrebleu's paired bootstrap does. Their spread
is V_items, and the p-value is the larger of the t test's and the bootstrap's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist, fmean
from typing import Any, Literal, NamedTuple

import numpy as np

from ebft.method.measures import SumsAndCounts, linearized

LEVEL = 0.95
_ENUMERATED = 12  # with so few items, signs are enumerated
DRAWS = 10_000  # no p-value of a bootstrap is below one in so many, and reports correct for dozens of tests
SEED = 12345  # sacrebleu's default
_AT_ONCE = 500  # draws, to bound memory
CorpusMetric = Literal["bleu", "chrf"]


@dataclass(frozen=True)
class Measured:
    """A metric of one model: its value, and how each item that counts pulls at it (the pulls add up to 0)."""

    value: float
    pulls: tuple[float | None, ...]  # None: an item that counts nothing, such as a sequence without contexts
    seed: int | None = None  # None: nothing was trained
    count: float = 0  # tokens, contexts or problems behind the value


@dataclass(frozen=True, eq=False)
class Corpus:
    """The translations of one model, as a corpus score sees them."""

    metric: CorpusMetric
    statistics: np.ndarray  # [sentences, numbers that sacrebleu adds up]
    seed: int | None = None  # None: nothing was trained

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


def summarise(runs: Runs, is_rate: bool = False) -> Summary:
    """The mean over the seeds of one method. A rate has Wilson's interval, which 0 of 3 does not shrink to nothing."""
    value = fmean(run.value for run in runs)
    of_items, items, _ = _over_items(value, runs)
    variance, freedom = _combined(of_items, items, [[run.value for run in runs]])
    interval = wilson_of_mean(value, items, variance) if is_rate else _interval(value, variance, freedom)
    return Summary(value, interval, math.nan, items, sum(run.seed is not None for run in runs))


def difference(mine: Runs, other: Runs) -> Summary:
    """`mine` minus `other`, on the same items. Runs with the same seeds are paired."""
    value = fmean(run.value for run in mine) - fmean(run.value for run in other)
    of_items, items, floor = _over_items(value, mine, other)
    by_run, trained = _of_runs(mine, other)
    variance, freedom = _combined(of_items, items, by_run)
    p = _p_value(value, variance, freedom, floor)
    return Summary(value, _interval(value, variance, freedom), p, items, trained)


def _over_items(value: float, *sides: Runs) -> tuple[float, int, float]:
    """The variance of a mean, or of a difference of two, over items (NaN for fewer than two); how many these are; and
    a p-value that a t test may not be below."""
    if isinstance(sides[0][0], Corpus):
        means = [np.mean([draws(run) for run in side], axis=0) for side in sides]
        drawn = means[0] if len(means) == 1 else means[0] - means[1]
        items = len(sides[0][0].statistics)
        return float(drawn.var(ddof=1)) if items > 1 else math.nan, items, bootstrap_p(value, drawn)
    pulls = _mean_pulls(*sides)  # type: ignore[arg-type]
    moved = pulls[0] if len(pulls) == 1 else [mine - other for mine, other in zip(*pulls, strict=True)]
    items = len(moved)
    if items < 2:
        return math.nan, items, math.nan
    of_items = math.fsum(pull * pull for pull in moved) / (items - 1) / items
    # No test of so many items can be surer than this, however equal the differences are; of few, by enumeration.
    few = len(sides) == 2 and items <= _ENUMERATED
    return of_items, items, sign_flip_p([value + pull for pull in moved]) if few else 2.0 ** (1 - items)


def _mean_pulls(*sides: Sequence[Measured]) -> list[list[float]]:
    """Of each side, the mean over its runs, for every item that counts in any run of any side."""
    runs = [run for side in sides for run in side]
    observed = [place for place in range(len(runs[0].pulls)) if any(run.pulls[place] is not None for run in runs)]

    def pulls(run: Measured) -> list[float]:
        # A mean over these items has to be moved by as much as the mean over those that count in the run.
        scale = len(observed) / sum(pull is not None for pull in run.pulls)
        return [(run.pulls[place] or 0.0) * scale for place in observed]

    return [[fmean(of_item) for of_item in zip(*map(pulls, side), strict=True)] for side in sides]


def _of_runs(mine: Runs, other: Runs) -> tuple[list[list[float]], int]:
    """What varies between the runs of a difference, and how many there are on the side that has fewer."""
    seeds = [sorted(run.seed for run in runs if run.seed is not None) for runs in (mine, other)]
    trained = min((len(found) for found in seeds if found), default=0)
    if seeds[0] == seeds[1] and all(len(found) > 1 for found in seeds):
        theirs = {run.seed: run.value for run in other}
        return [[run.value - theirs[run.seed] for run in mine]], trained
    # Each side's runs vary on their own; a side with one run has nothing to say about it.
    return [[run.value for run in runs] for runs in (mine, other)], trained


def _combined(of_items: float, items: int, by_run: Sequence[Sequence[float]]) -> tuple[float, float]:
    """The sum of the variances over items and over runs, and its degrees of freedom by Welch and Satterthwaite."""
    parts = [(of_items, items - 1)]
    for values in by_run:
        if len(values) > 1:
            mean, others = fmean(values), len(values) - 1
            parts.append((math.fsum((v - mean) ** 2 for v in values) / others / len(values), others))
    variance = math.fsum(part for part, _ in parts)
    if math.isnan(variance) or variance == 0:
        return variance, float(items - 1)
    return variance, variance**2 / math.fsum(part**2 / freedom for part, freedom in parts)


def _interval(value: float, variance: float, freedom: float) -> Interval | None:
    from scipy.stats import t

    if math.isnan(variance) or math.isnan(value):
        return None
    half = float(t.ppf((1 + LEVEL) / 2, freedom)) * math.sqrt(variance)
    return Interval(value - half, value + half)


def _p_value(value: float, variance: float, freedom: float, floor: float) -> float:
    """Of the t test; for few items at least what flipping their signs gives, which a t test can be far below."""
    from scipy.stats import t

    if math.isnan(variance) or math.isnan(value):
        return math.nan
    if value == 0:
        return 1.0
    return max(2 * float(t.sf(abs(value) / math.sqrt(variance) if variance else math.inf, freedom)), floor)


def sign_flip_p(differences: Sequence[float]) -> float:
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
    """The score of each corpus that is drawn from this one."""
    statistics = corpus.statistics.astype(np.float64)
    sums = np.concatenate([part @ statistics for part in _counts(len(statistics), times)])
    return np.array([_score(corpus.metric, row) for row in sums])


@cache
def _counts(sentences: int, times: int) -> tuple[np.ndarray, ...]:
    """How often each sentence is in each draw, in parts; the same for all models."""
    random = np.random.default_rng(SEED)
    parts = []
    for start in range(0, times, _AT_ONCE):
        rows = min(_AT_ONCE, times - start)
        drawn = random.integers(sentences, size=(rows, sentences)) + sentences * np.arange(rows)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=rows * sentences).reshape(rows, sentences)
        parts.append(counts.astype(np.uint16))
    return tuple(parts)


@cache
def _formula(metric: CorpusMetric) -> Any:
    from sacrebleu.metrics import BLEU, CHRF

    return {"bleu": BLEU, "chrf": CHRF}[metric]()  # how sentences were tokenised is in their statistics


def _score(metric: CorpusMetric, sums: np.ndarray) -> float:
    # It has no public name; the standard errors of `ebft eval` use it too.
    return float(_formula(metric)._compute_score_from_stats(sums.tolist()).score)


def wilson(passed: float, trials: float, level: float = LEVEL) -> Interval:
    """Wilson's score interval of a share."""
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
