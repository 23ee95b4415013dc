"""Corpus BLEU and chrF in studies: intervals and paired tests by bootstrap over sentences.

A corpus score is no mean over sentences, but it is a function of sums over them (n-grams that match, lengths). Corpora
are drawn from the sentences with replacement, the same draws for every model, as sacrebleu's paired bootstrap does;
a draw is a count for each sentence, so that the sums of all draws are one product of matrices. The formula of the score
is sacrebleu's own.

The spread of a difference over the draws is its variance over items; that over seeds is added as for every other
metric (`statistics`). The p-value is the larger of that t test's and the bootstrap's: the share of draws whose
difference is as far from their mean as the measured one is from 0. That is two-sided; sacrebleu's counts one side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean
from typing import Any, Literal

import numpy as np

from ebft.studies.statistics import Summary, of_runs, student_summary

DRAWS = 10_000  # no p-value is below one in so many, and reports correct for dozens of tests
SEED = 12345  # sacrebleu's default
_AT_ONCE = 500  # draws, to bound memory
Metric = Literal["bleu", "chrf"]


@dataclass(frozen=True, eq=False)
class Corpus:
    """The translations of one model, as its score sees them."""

    metric: Metric
    statistics: np.ndarray  # [sentences, numbers that sacrebleu adds up]
    seed: int | None = None  # None: nothing was trained

    @property
    def value(self) -> float:
        return _score(self.metric, self.statistics.sum(0))


def summarise(runs: Sequence[Corpus]) -> Summary:
    """The mean over the seeds of one method."""
    found = _summary(fmean(run.value for run in runs), _mean_draws(runs), runs, [[run.value for run in runs]])
    return Summary(found.value, found.interval, math.nan, found.items, sum(run.seed is not None for run in runs))


def difference(mine: Sequence[Corpus], other: Sequence[Corpus]) -> Summary:
    """`mine` minus `other`, of translations of the same sentences in the same order."""
    value = fmean(run.value for run in mine) - fmean(run.value for run in other)
    by_run, seeds = of_runs(mine, other)
    drawn = _mean_draws(mine) - _mean_draws(other)
    found = _summary(value, drawn, mine, by_run)
    return Summary(value, found.interval, max(found.p, bootstrap_p(value, drawn)), found.items, seeds)


def bootstrap_p(value: float, drawn: np.ndarray) -> float:
    """Two-sided; NaN draws (there are too few sentences) give NaN. A difference of exactly 0 is no difference."""
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


def _mean_draws(runs: Sequence[Corpus]) -> np.ndarray:
    return np.mean([draws(run) for run in runs], axis=0)


def _summary(value: float, drawn: np.ndarray, runs: Sequence[Corpus], by_run: Sequence[Sequence[float]]) -> Summary:
    items = len(runs[0].statistics)
    variance = float(drawn.var(ddof=1)) if items > 1 else math.nan
    return student_summary(value, variance, items, by_run)


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
def _formula(metric: Metric) -> Any:
    from sacrebleu.metrics import BLEU, CHRF

    return {"bleu": BLEU, "chrf": CHRF}[metric]()  # how sentences were tokenised is in their statistics


def _score(metric: Metric, sums: np.ndarray) -> float:
    # It has no public name; the standard errors of `ebft eval` use it too.
    return float(_formula(metric)._compute_score_from_stats(sums.tolist()).score)
