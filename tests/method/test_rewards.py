"""Rewards, advantages and the feature-matching loss against the paper's formulas, by loops and by enumeration."""

import itertools
from collections.abc import Callable
from typing import get_args

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from ebft.method.rewards import (
    Whitening,
    conditional_feature_matching_loss,
    feature_matching_rewards,
    leave_one_out_advantages,
    token_groups,
    truth_groups,
)

SETTINGS = settings(max_examples=50, deadline=None)
MODES: tuple[Whitening, ...] = get_args(Whitening)


def random_features(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# ---- the paper's formulas ----------------------------------------------------------------------------------


def cosine(x: Tensor, y: Tensor) -> Tensor:
    return (x @ y) / (x.norm() * y.norm())


def over_others(product: Callable[[Tensor, Tensor], Tensor], vectors: list[Tensor]) -> list[float]:
    """2/(n-1) times the sum over the other samples; one sample has none."""
    n = len(vectors)
    sums = [sum(float(product(x, y)) for i, y in enumerate(vectors) if i != j) for j, x in enumerate(vectors)]
    return [2 / max(n - 1, 1) * x for x in sums]


def thin_svd(generated: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Phi = U S V^T [D, n], without the directions of size zero."""
    U, S, Vh = torch.linalg.svd(generated.T, full_matrices=False)
    kept = S.gt(1e-5 * S[0])
    return U[:, kept], S[kept], Vh[kept]


def sums_that_decide_the_sign(generated: Tensor) -> Tensor:
    """K^{dagger/2} 1 with K^{dagger/2} = V S^-1 V^T: `reference` takes their sign."""
    _, S, Vh = thin_svd(generated)
    return (Vh.T @ torch.diag(1 / S) @ Vh).sum(1)


def in_feature_space(generated: Tensor, truth: Tensor, whitening: str) -> tuple[list[float], list[float]]:
    """Alignment and diversity as the paper writes them, with whitened features of D entries."""
    n = generated.shape[0]
    phi = list(generated)
    if whitening == "none":
        return [float(2 * x @ truth) for x in phi], over_others(torch.dot, phi)

    # sigma_hat = Phi Phi^T / n, and the square root of its pseudo-inverse.
    U, S, _ = thin_svd(generated)
    half_inverse = U @ torch.diag(n**0.5 / S) @ U.T
    white_phi = [half_inverse @ x for x in phi]
    white_truth = half_inverse @ truth
    if whitening == "reference":
        # The reference implementation whitens with Phi Phi^T (no 1/n) and leaves the truth as it is.
        white_phi = [x / n**0.5 for x in white_phi]
        signs = sums_that_decide_the_sign(generated).sign()
        alignment = [float(2 * s * cosine(x, truth)) for s, x in zip(signs, white_phi, strict=True)]
        return alignment, over_others(torch.dot, white_phi)
    diversity = over_others(cosine if whitening == "both" else torch.dot, white_phi)
    if whitening == "plain":
        return [float(2 * x @ white_truth) for x in white_phi], diversity
    if whitening == "truth":
        return [float(2 * x @ white_truth / white_truth.norm()) for x in white_phi], diversity
    return [float(2 * cosine(x, white_truth)) for x in white_phi], diversity


@SETTINGS
@given(
    seed=st.integers(0, 10**6),
    D=st.integers(1, 12),
    copies=st.lists(st.lists(st.integers(0, 5), min_size=6, max_size=6), min_size=1, max_size=3),
    n=st.integers(1, 6),
    whitening=st.sampled_from(MODES),
    drawn=st.booleans(),
)
def test_every_whitening_equals_the_feature_space_formula(
    seed: int, D: int, copies: list[list[int]], n: int, whitening: Whitening, drawn: bool
) -> None:
    """Of some contexts, which do not mix."""
    features = random_features(seed, 6, D)
    generated = torch.stack([features[chosen[:n]] for chosen in copies])  # equal numbers are equal completions
    truths = generated[:, 0] if drawn else random_features(seed + 1, len(copies), D)
    for samples in generated:
        _, S, _ = thin_svd(samples)
        assume(S[-1] > 1e-3 * S[0])  # other draws would only test the tolerance on singular values
        sums = sums_that_decide_the_sign(samples)
        assume(whitening != "reference" or bool(sums.abs().min() > 1e-6 * sums.abs().max()))
    found = feature_matching_rewards(generated, truths, whitening)
    for context, own in enumerate(zip(generated, truths, strict=True)):
        for terms, expected in zip(found, in_feature_space(*own, whitening), strict=True):
            assert terms.dtype == torch.float64
            assert terms[context].tolist() == pytest.approx(expected, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("whitening", MODES)
def test_a_direction_of_a_thousandth_of_the_largest_counts(whitening: Whitening) -> None:
    generated = torch.tensor([[1.0, 0, 0], [1.0, 1.5e-3, 0], [0.2, 0, 1.0]], dtype=torch.float64)
    truth = random_features(2, 3)
    found = feature_matching_rewards(generated, truth, whitening)
    for terms, expected in zip(found, in_feature_space(generated, truth, whitening), strict=True):
        assert terms.tolist() == pytest.approx(expected, rel=1e-4, abs=1e-6)


# ---- the paper's lemma on equal completions ----------------------------------------------------------------


@SETTINGS
@given(seed=st.integers(0, 10**6), copies=st.lists(st.integers(0, 4), min_size=2, max_size=6))
def test_lemma_holds_for_noisy_duplicates_that_share_a_group(seed: int, copies: list[int]) -> None:
    n, times = len(copies), [copies.count(c) for c in copies]
    base = random_features(seed, 5, 64)
    # What a packed bf16 pass does to equal completions: every copy is rounded its own way.
    noise = 1 + 2.0**-8 * random_features(seed + 1, n, 64)
    generated = ((base / base.norm(dim=-1, keepdim=True))[copies] * noise).bfloat16().float()
    truth = random_features(seed + 2, 64).float()
    as_plain = [2 * (1 - 1 / m) / (1 - 1 / n) for m in times]
    for whitening in ("plain", "paper", "truth"):
        _, diversity = feature_matching_rewards(generated, truth, whitening, torch.tensor(copies))
        assert diversity.tolist() == pytest.approx(as_plain, abs=1e-8)
    alignment, diversity = feature_matching_rewards(generated, truth, "both", torch.tensor(copies))
    assert diversity.tolist() == pytest.approx([2 * (m - 1) / (n - 1) for m in times], abs=1e-8)
    first = torch.tensor([copies.index(c) for c in copies])
    assert alignment.tolist() == pytest.approx(alignment[first].tolist(), abs=1e-9)


@pytest.mark.parametrize("whitening", MODES)
def test_a_zero_feature_vector_aligns_with_nothing(whitening: Whitening) -> None:
    for n, row in itertools.product(range(2, 7), range(6)):
        generated, truth = random_features(10 * n + row, n, 8), random_features(1, 8)
        generated[row % n] = 0
        alignment, diversity = feature_matching_rewards(generated, truth, whitening)
        assert float(alignment[row % n]) == pytest.approx(0, abs=1e-6)
        assert float(diversity[row % n]) == pytest.approx(0, abs=1e-6)
        for g, t in ((generated, truth), (0 * generated, truth), (generated, 0 * truth)):
            assert all(bool(torch.isfinite(term).all()) for term in feature_matching_rewards(g, t, whitening))


# ---- numbers of the reference implementation ---------------------------------------------------------------


def test_reference_equals_the_reference_implementation() -> None:
    """One context of its own inputs and outputs (float32, before the factor 2), with a negative sign. The features have
    24 entries; here they are coordinates in an orthonormal basis of their span, truth first."""
    features = [
        [1.0, 0.0, 0.0, 0.0, 0.0],
        [0.101223, 0.994864, 0.0, 0.0, 0.0],
        [-0.255593, 0.654769, 0.711301, 0.0, 0.0],
        [0.37428, 0.762868, -0.230337, 0.474228, 0.0],
        [0.049099, 0.728056, -0.490874, -0.457277, 0.132154],
    ]
    truth, *generated = torch.tensor(features)
    alignment, diversity = feature_matching_rewards(torch.stack(generated), truth, "reference")
    assert alignment.tolist() == pytest.approx([2 * x for x in (-0.272989, -0.414834, 0.324707, -0.15068)], abs=5e-6)
    assert diversity.tolist() == pytest.approx([0.0] * 4, abs=5e-6)


# ---- groups ------------------------------------------------------------------------------------------------

TOKENS = st.lists(st.integers(0, 1), min_size=3, max_size=3)


@SETTINGS
@given(completions=st.lists(TOKENS, min_size=1, max_size=6), truth=TOKENS)
def test_groups_equal_loops(completions: list[list[int]], truth: list[int]) -> None:
    first_equal = [completions.index(c) for c in completions]
    groups = token_groups(torch.tensor(completions))
    assert groups.tolist() == first_equal
    expected = completions.index(truth) if truth in completions else -1
    assert int(truth_groups(torch.tensor(completions), torch.tensor(truth), groups)) == expected


# ---- advantages --------------------------------------------------------------------------------------------


@SETTINGS
@given(seed=st.integers(0, 10**6), n=st.integers(1, 8), alpha=st.floats(0, 1))
def test_the_baseline_is_the_mean_reward_of_the_others_among_themselves(seed: int, n: int, alpha: float) -> None:
    features, truth = random_features(seed, n, 5), random_features(seed + 1, 5)
    alignment, diversity = feature_matching_rewards(features, truth, "none")
    found = alignment - alpha * diversity - leave_one_out_advantages(alignment, diversity, alpha)
    expected = []
    for j in range(n):  # of none it is 0
        others = [features[i] for i in range(n) if i != j]
        diversities = over_others(torch.dot, others)
        rewards = [2 * float(x @ truth) - alpha * y for x, y in zip(others, diversities, strict=True)]
        expected.append(sum(rewards) / max(n - 1, 1))
    assert found.tolist() == pytest.approx(expected, abs=1e-9)
    if n >= 3:
        assert float(leave_one_out_advantages(alignment, diversity, alpha).sum()) == pytest.approx(0, abs=1e-9)


# ---- the feature-matching loss -------------------------------------------------------------------------------


@SETTINGS
@given(seed=st.integers(0, 10**6), n=st.integers(2, 4))
def test_feature_matching_loss_is_unbiased_and_the_plug_in_is_not(seed: int, n: int) -> None:
    """Expectations over all n-tuples from a space of four completions."""
    features, truth = random_features(seed, 4, 3), random_features(seed + 1, 3)
    p = random_features(seed + 2, 4).softmax(0)
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
