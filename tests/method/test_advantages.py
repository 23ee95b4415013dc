"""The leave-one-out baseline against the paper's derivation from pairwise similarities, written as loops."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ebft.method.rewards import leave_one_out_advantages, leave_one_out_baseline

SETTINGS = settings(max_examples=50, deadline=None)


def random_features(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def terms(features: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    """T1 and T2 of the paper without whitening, by loops over pairs."""
    n = features.shape[0]
    alignment = [2 * float(x @ truth) for x in features]
    diversity = [sum(2 / (n - 1) * float(features[j] @ features[i]) for i in range(n) if i != j) for j in range(n)]
    return torch.tensor(alignment, dtype=torch.float64), torch.tensor(diversity, dtype=torch.float64)


def baseline_without(j: int, features: Tensor, truth: Tensor, alpha: float) -> float:
    """b_j from the other samples alone: T2^(j',j) is the diversity of j' among those that are not j."""
    n = features.shape[0]
    others = [i for i in range(n) if i != j]
    total = 0.0
    for i in others:
        alignment = 2 * float(features[i] @ truth)
        rest = [m for m in others if m != i]
        diversity = 2 / (n - 2) * sum(float(features[i] @ features[m]) for m in rest) if n > 2 else 0.0
        total += alignment - alpha * diversity
    return total / (n - 1)


@SETTINGS
@given(seed=st.integers(0, 10**6), n=st.integers(3, 8), alpha=st.floats(0, 1))
def test_baseline_is_the_mean_reward_of_the_others_among_themselves(seed: int, n: int, alpha: float) -> None:
    features, truth = random_features(seed, n, 5), random_features(seed + 1, 5)
    alignment, diversity = terms(features, truth)
    expected = [baseline_without(j, features, truth, alpha) for j in range(n)]
    assert leave_one_out_baseline(alignment, diversity, alpha).tolist() == pytest.approx(expected, abs=1e-10)
    advantages = leave_one_out_advantages(alignment, diversity, alpha).tolist()
    rewards = [float(a - alpha * d) for a, d in zip(alignment, diversity, strict=True)]
    assert advantages == pytest.approx([r - b for r, b in zip(rewards, expected, strict=True)], abs=1e-10)
    assert sum(advantages) == pytest.approx(0, abs=1e-10)


@SETTINGS
@given(seed=st.integers(0, 10**6), n=st.integers(2, 6), j=st.integers(0, 5))
def test_a_sample_has_no_say_in_its_own_baseline(seed: int, n: int, j: int) -> None:
    j = j % n
    features, truth = random_features(seed, n, 5), random_features(seed + 1, 5)
    changed = features.clone()
    changed[j] = 10 * random_features(seed + 2, 5)
    before = leave_one_out_baseline(*terms(features, truth))
    after = leave_one_out_baseline(*terms(changed, truth))
    assert float(after[j]) == pytest.approx(float(before[j]), abs=1e-10)
    assert (after - before).abs().max() > 1e-3  # the others' baselines do change


def test_two_samples_drop_the_diversity_part() -> None:
    alignment, diversity = torch.tensor([3.0, 5.0]), torch.tensor([0.7, 0.7])
    assert leave_one_out_baseline(alignment, diversity).tolist() == [5.0, 3.0]
    assert leave_one_out_advantages(alignment, diversity).tolist() == pytest.approx([-2.7, 1.3])


def test_one_sample_has_no_baseline() -> None:
    alignment, diversity = torch.tensor([3.0]), torch.tensor([0.0])
    assert leave_one_out_baseline(alignment, diversity).tolist() == [0.0]
    assert leave_one_out_advantages(alignment, diversity).tolist() == [3.0]


def test_contexts_of_a_batch_do_not_mix() -> None:
    alignment, diversity = random_features(0, 2, 3, 4), random_features(1, 2, 3, 4)
    together = leave_one_out_advantages(alignment, diversity, 0.5)
    for row in range(2):
        for b in range(3):
            for j in range(4):
                others = [i for i in range(4) if i != j]
                t1, t2 = alignment[row, b], 0.5 * diversity[row, b]
                expected = t1[j] - t2[j] - sum(t1[i] for i in others) / 3 + sum(t2[i] for i in others) / 2
                assert float(together[row, b, j]) == pytest.approx(float(expected - t2[j] / 2), abs=1e-12)


# Inputs and outputs of the reference implementation: alpha, alignment, diversity, baseline.
REFERENCE_CASES = [
    (1.0, [-0.973556, 0.378074], [0.937935, 0.065746], [0.378074, -0.973556]),
    (0.5, [0.544988, -0.101904, -2.828142], [1.033566, 0.334816, 0.952906], [-1.592101, -1.967405, 0.013804]),
    (
        1.0,
        [-1.018404, 0.432473, 0.906345, -2.287943],
        [0.948854, 0.082091, -0.918981, 0.267544],
        [0.442725, -0.907664, -2.066694, 0.184595],
    ),
    (
        0.0,
        [-1.018404, 0.432473, 0.906345, -2.287943],
        [0.948854, 0.082091, -0.918981, 0.267544],
        [-0.316375, -0.800001, -0.957958, 0.106805],
    ),
    (
        0.5,
        [0.226616, 0.83027, 0.294075, 0.272073, 0.227965, 0.990596, 2.165084, -0.459295],
        [0.283657, 1.979931, -0.029037, 1.324301, 0.640717, 0.273606, -1.951287, 0.548434],
        [0.408669, 0.605145, 0.346916, 0.575615, 0.467986, 0.297853, -0.240746, 0.550785],
    ),
]


@pytest.mark.parametrize(("alpha", "alignment", "diversity", "baseline"), REFERENCE_CASES)
def test_baseline_equals_the_reference_implementation(
    alpha: float, alignment: list[float], diversity: list[float], baseline: list[float]
) -> None:
    found = leave_one_out_baseline(torch.tensor(alignment), torch.tensor(diversity), alpha)
    assert found.tolist() == pytest.approx(baseline, abs=3e-6)


def test_terms_of_different_shape_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"alignment \(2, 3\) and diversity \(3,\) differ in shape"):
        leave_one_out_advantages(torch.ones(2, 3), torch.ones(3))


def test_no_samples_are_an_error() -> None:
    for empty in (torch.ones(2, 0), torch.ones(())):
        with pytest.raises(ValueError, match="at least one sample per context"):
            leave_one_out_advantages(empty, empty)
