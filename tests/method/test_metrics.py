"""Metrics by enumeration of small spaces, and standard errors against the jackknife and simulation."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ebft.method.measures import cross_entropy, mean_and_standard_error
from ebft.method.rewards import conditional_feature_matching_loss, whitened_proxy

SETTINGS = settings(max_examples=50, deadline=None)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# ---- feature-matching loss ---------------------------------------------------------------------------------


@SETTINGS
@given(seed=st.integers(0, 10**6), n=st.integers(2, 4))
def test_feature_matching_loss_is_unbiased_and_the_plug_in_is_not(seed: int, n: int) -> None:
    """Expectations over all n-tuples from a space of four completions."""
    g = generator(seed)
    features = torch.randn(4, 3, generator=g, dtype=torch.float64)
    truth = torch.randn(3, generator=g, dtype=torch.float64)
    p = torch.rand(4, generator=g, dtype=torch.float64).softmax(0)
    tuples = torch.tensor(list(itertools.product(range(4), repeat=n)))
    weights = p[tuples].prod(1)
    drawn = features[tuples]  # [4^n, n, D]

    mean = p @ features
    exact = float((mean - truth).square().sum())
    variance = float(p @ (features - mean).square().sum(1))
    estimates = conditional_feature_matching_loss(drawn, truth.expand(len(tuples), 3))
    assert float(weights @ estimates) == pytest.approx(exact, rel=1e-10)
    plug_in = (drawn.mean(1) - truth).square().sum(1)
    assert float(weights @ plug_in) == pytest.approx(exact + variance / n, rel=1e-10)


def test_feature_matching_loss_of_each_context_equals_loops() -> None:
    generated = torch.randn(2, 3, 4, 5, generator=generator(0), dtype=torch.float64)
    truth = torch.randn(2, 3, 5, generator=generator(1), dtype=torch.float64)
    found = conditional_feature_matching_loss(generated, truth)
    assert found.shape == (2, 3)
    for row in range(2):
        for b in range(3):
            phi, psi = generated[row, b], truth[row, b]
            pairs = [float(phi[i] @ phi[j]) for i in range(4) for j in range(4) if i != j]
            expected = float(psi @ psi) - 2 * statistics.mean(float(x @ psi) for x in phi)
            assert float(found[row, b]) == pytest.approx(expected + statistics.mean(pairs), abs=1e-12)


def test_feature_matching_loss_needs_two_samples() -> None:
    with pytest.raises(ValueError, match="needs n >= 2 samples per context; use samples >= 2"):
        conditional_feature_matching_loss(torch.ones(1, 4), torch.ones(4))


def test_feature_matching_loss_rejects_nan() -> None:
    with pytest.raises(ValueError, match="generated features contain NaN"):
        conditional_feature_matching_loss(torch.full((2, 4), float("nan")), torch.ones(4))


def test_whitened_proxy() -> None:
    alignment, diversity = torch.tensor([[1.0, 2.0], [3.0, 5.0]]), torch.tensor([[2.0, 2.0], [0.0, 4.0]])
    assert whitened_proxy(alignment, diversity).tolist() == [0.5, 3.0]


# ---- means and standard errors -----------------------------------------------------------------------------


@SETTINGS
@given(
    rows=st.lists(st.tuples(st.floats(-5, 5, width=32), st.booleans()), min_size=2, max_size=20).filter(
        lambda rows: sum(kept for _, kept in rows) >= 2
    )
)
def test_mean_and_standard_error_of_independent_values(rows: list[tuple[float, bool]]) -> None:
    values, mask = torch.tensor([v for v, _ in rows]), torch.tensor([kept for _, kept in rows])
    chosen = [v for v, kept in rows if kept]
    found = mean_and_standard_error(values, mask)
    assert float(found.mean) == pytest.approx(statistics.mean(chosen), abs=1e-9)
    expected_error = statistics.stdev(chosen) / len(chosen) ** 0.5
    assert float(found.standard_error) == pytest.approx(expected_error, abs=1e-6)


def test_a_single_value_has_no_standard_error(recwarn: pytest.WarningsRecorder) -> None:
    found = mean_and_standard_error(torch.tensor([2.0]))
    assert float(found.mean) == 2.0
    assert math.isnan(found.standard_error)
    assert not [str(w.message) for w in recwarn]  # a NaN is the answer, not an accident


def log_probs_and_mask(seed: int, b: int, T: int) -> tuple[Tensor, Tensor]:
    """Sequences of different lengths and difficulties."""
    g = generator(seed)
    difficulty = torch.rand(b, 1, generator=g) * 3
    log_probs = -difficulty * torch.rand(b, T, generator=g)
    lengths = torch.randint(1, T + 1, (b, 1), generator=g)
    return log_probs, torch.arange(T) < lengths


@SETTINGS
@given(seed=st.integers(0, 10**6), b=st.integers(1, 5))
def test_cross_entropy_is_the_mean_over_all_tokens_in_the_mask(seed: int, b: int) -> None:
    log_probs, mask = log_probs_and_mask(seed, b, 6)
    tokens = [-float(log_probs[i, t]) for i in range(b) for t in range(6) if mask[i, t]]
    outside = log_probs.masked_fill(~mask, float("nan"))  # padding may hold anything
    for given_log_probs in (log_probs, outside):
        found = cross_entropy(given_log_probs, mask)
        assert float(found.mean) == pytest.approx(statistics.mean(tokens), rel=1e-5)
        assert math.isnan(found.standard_error) == (b == 1)


def test_cross_entropy_error_with_equal_lengths_is_that_of_sequence_means() -> None:
    log_probs, _ = log_probs_and_mask(0, 7, 5)
    means = [-float(row.mean()) for row in log_probs]
    found = cross_entropy(log_probs, torch.ones(7, 5, dtype=torch.bool))
    assert float(found.standard_error) == pytest.approx(statistics.stdev(means) / 7**0.5, rel=1e-5)


def test_cross_entropy_error_agrees_with_the_jackknife() -> None:
    log_probs, mask = log_probs_and_mask(1, 300, 12)
    sums = [-float(row[m].double().sum()) for row, m in zip(log_probs, mask, strict=True)]
    counts = [int(m.sum()) for m in mask]
    left_out = [
        (sum(sums) - s) / (sum(counts) - c) for s, c in zip(sums, counts, strict=True)
    ]  # the ratio without one sequence
    b, centre = len(left_out), statistics.mean(left_out)
    jackknife = ((b - 1) / b * sum((x - centre) ** 2 for x in left_out)) ** 0.5
    found = float(cross_entropy(log_probs, mask).standard_error)
    assert found == pytest.approx(jackknife, rel=0.02)
    tokens = -log_probs[mask]
    as_if_independent = float(tokens.std()) / len(tokens) ** 0.5
    assert found > 1.5 * as_if_independent  # tokens of a sequence share its difficulty


def test_cross_entropy_error_agrees_with_simulation() -> None:
    estimates = [cross_entropy(*log_probs_and_mask(seed, 60, 12)) for seed in range(400)]
    spread = statistics.stdev(float(e.mean) for e in estimates)
    claimed = statistics.mean(float(e.standard_error) for e in estimates)
    assert claimed == pytest.approx(spread, rel=0.12)  # 400 repetitions know their spread to 3.5 %


def test_cross_entropy_of_no_tokens_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing to take the mean over"):
        cross_entropy(torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.bool))
