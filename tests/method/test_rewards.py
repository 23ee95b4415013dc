"""Rewards from the n x n Gram matrix against the paper's formulas in the D-dimensional feature space."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from ebft.method.rewards import Whitening, feature_matching_rewards, gram, token_groups, truth_groups, whiten

SETTINGS = settings(max_examples=50, deadline=None)
MODES: tuple[Whitening, ...] = get_args(Whitening)


def random_features(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def unit_rows(features: Tensor) -> Tensor:
    return features / features.norm(dim=-1, keepdim=True)


def random_rotation(seed: int, D: int) -> Tensor:
    return torch.linalg.qr(random_features(seed, D, D)).Q


# ---- the paper's formulas ----------------------------------------------------------------------------------


def dot(x: Tensor, y: Tensor) -> Tensor:
    return x @ y


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


def well_conditioned(generated: Tensor) -> bool:
    """Other draws would only test the tolerance on singular values."""
    _, S, _ = thin_svd(generated)
    return bool(S[-1] > 1e-3 * S[0])


def sums_that_decide_the_sign(generated: Tensor) -> Tensor:
    """K^{dagger/2} 1 with K^{dagger/2} = V S^-1 V^T: `reference` takes their sign."""
    _, S, Vh = thin_svd(generated)
    return (Vh.T @ torch.diag(1 / S) @ Vh).sum(1)


def in_feature_space(generated: Tensor, truth: Tensor, whitening: str) -> tuple[list[float], list[float]]:
    """Alignment and diversity as the paper writes them, with whitened features of D entries."""
    n = generated.shape[0]
    phi = list(generated)
    if whitening == "none":
        return [float(2 * x @ truth) for x in phi], over_others(dot, phi)

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
        return alignment, over_others(dot, white_phi)
    diversity = over_others(cosine if whitening == "both" else dot, white_phi)
    if whitening == "plain":
        return [float(2 * x @ white_truth) for x in white_phi], diversity
    if whitening == "truth":
        return [float(2 * x @ white_truth / white_truth.norm()) for x in white_phi], diversity
    return [float(2 * cosine(x, white_truth)) for x in white_phi], diversity


@SETTINGS
@given(
    seed=st.integers(0, 10**6),
    D=st.integers(1, 12),
    copies=st.lists(st.integers(0, 5), min_size=1, max_size=6),
    whitening=st.sampled_from(MODES),
)
def test_every_whitening_equals_the_feature_space_formula(
    seed: int, D: int, copies: list[int], whitening: Whitening
) -> None:
    generated = random_features(seed, 6, D)[copies]  # equal numbers are equal completions
    truth = random_features(seed + 1, D)
    assume(well_conditioned(generated))
    sums = sums_that_decide_the_sign(generated)
    assume(whitening != "reference" or bool(sums.abs().min() > 1e-6 * sums.abs().max()))
    expected_alignment, expected_diversity = in_feature_space(generated, truth, whitening)
    alignment, diversity = feature_matching_rewards(generated, truth, whitening)
    assert alignment.tolist() == pytest.approx(expected_alignment, rel=1e-6, abs=1e-8)
    assert diversity.tolist() == pytest.approx(expected_diversity, rel=1e-6, abs=1e-8)


def test_contexts_of_a_batch_do_not_mix() -> None:
    generated, truth = random_features(0, 2, 3, 4, 7), random_features(1, 2, 3, 7)
    for whitening in MODES:
        alignment, diversity = feature_matching_rewards(generated, truth, whitening)
        assert alignment.dtype == diversity.dtype == torch.float64
        for row in range(2):
            for b in range(3):
                expected = in_feature_space(generated[row, b], truth[row, b], whitening)
                assert alignment[row, b].tolist() == pytest.approx(expected[0], abs=1e-9)
                assert diversity[row, b].tolist() == pytest.approx(expected[1], abs=1e-9)


@SETTINGS
@given(seed=st.integers(0, 10**6), D=st.integers(2, 12), n=st.integers(1, 6), whitening=st.sampled_from(MODES))
def test_rotating_the_feature_space_changes_nothing(seed: int, D: int, n: int, whitening: Whitening) -> None:
    generated, truth = random_features(seed, n, D), random_features(seed + 1, D)
    rotation = random_rotation(seed + 2, D)
    sums = sums_that_decide_the_sign(generated)
    assume(well_conditioned(generated) and bool(sums.abs().min() > 1e-6 * sums.abs().max()))
    before = feature_matching_rewards(generated, truth, whitening)
    after = feature_matching_rewards(generated @ rotation, truth @ rotation, whitening)
    torch.testing.assert_close(after, before, rtol=1e-6, atol=1e-8)


# ---- the paper's lemma on equal completions ----------------------------------------------------------------


def multiplicities(copies: list[int]) -> list[int]:
    return [copies.count(c) for c in copies]


COPIES = st.lists(st.integers(0, 4), min_size=2, max_size=6)


@SETTINGS
@given(seed=st.integers(0, 10**6), copies=COPIES)
def test_lemma_on_duplicates(seed: int, copies: list[int]) -> None:
    n, times = len(copies), multiplicities(copies)
    distinct = sorted(set(copies))
    base = unit_rows(random_features(seed, 5, 16))
    generated, truth = base[copies], random_features(seed + 1, 16)

    projector = whiten(gram(generated, truth)).projector
    for j in range(n):
        for i in range(n):
            expected = 1 / times[j] if copies[i] == copies[j] else 0.0
            assert float(projector[j, i]) == pytest.approx(expected, abs=1e-9)

    # x: coefficients of the truth's projection onto the distinct completions, by least squares.
    x_distinct = torch.linalg.lstsq(base[distinct].T, truth[:, None], driver="gelsd").solution[:, 0].tolist()
    x = [x_distinct[distinct.index(c)] for c in copies]
    norm = sum(x_k**2 / copies.count(c) for x_k, c in zip(x_distinct, distinct, strict=True)) ** 0.5
    as_plain = [2 * (1 - 1 / m) / (1 - 1 / n) for m in times]
    normalised = [2 * x_j / (m**0.5 * norm) for x_j, m in zip(x, times, strict=True)]
    expected_terms = {
        "plain": ([2 * n * x_j / m for x_j, m in zip(x, times, strict=True)], as_plain),
        "paper": (normalised, as_plain),
        "both": (normalised, [2 * (m - 1) / (n - 1) for m in times]),
        "truth": ([2 * n**0.5 * x_j / (m * norm) for x_j, m in zip(x, times, strict=True)], as_plain),
    }
    for whitening, (expected_alignment, expected_diversity) in expected_terms.items():
        alignment, diversity = feature_matching_rewards(generated, truth, whitening)
        assert alignment.tolist() == pytest.approx(expected_alignment, rel=1e-6, abs=1e-8), whitening
        assert diversity.tolist() == pytest.approx(expected_diversity, abs=1e-8), whitening


def with_bf16_noise(features: Tensor, seed: int) -> Tensor:
    """What a packed bf16 pass does to equal completions: every copy is rounded its own way."""
    noise = 1 + 2.0**-8 * random_features(seed, *features.shape)
    return (features * noise).bfloat16().float()


@SETTINGS
@given(seed=st.integers(0, 10**6), copies=COPIES)
def test_lemma_holds_for_noisy_duplicates_that_share_a_group(seed: int, copies: list[int]) -> None:
    n, times = len(copies), multiplicities(copies)
    generated = with_bf16_noise(unit_rows(random_features(seed, 5, 64))[copies], seed + 1)
    truth = random_features(seed + 2, 64).float()
    as_plain = [2 * (1 - 1 / m) / (1 - 1 / n) for m in times]
    for whitening in ("plain", "paper", "truth"):
        _, diversity = feature_matching_rewards(generated, truth, whitening, torch.tensor(copies))
        assert diversity.tolist() == pytest.approx(as_plain, abs=1e-8)
    alignment, diversity = feature_matching_rewards(generated, truth, "both", torch.tensor(copies))
    assert diversity.tolist() == pytest.approx([2 * (m - 1) / (n - 1) for m in times], abs=1e-8)
    for i in range(n):
        for j in range(n):
            if copies[i] == copies[j]:
                assert float(alignment[i]) == pytest.approx(float(alignment[j]), abs=1e-9)


def test_without_groups_noise_turns_duplicates_into_different_completions() -> None:
    copies = [0, 0, 1, 2]
    generated = with_bf16_noise(unit_rows(random_features(0, 5, 64))[copies], 1)
    truth = random_features(2, 64).float()
    _, diversity = feature_matching_rewards(generated, truth, "paper")
    _, grouped = feature_matching_rewards(generated, truth, "paper", torch.tensor(copies))
    assert grouped.tolist() == pytest.approx([4 / 3, 4 / 3, 0, 0], abs=1e-8)
    assert diversity.abs().max() < 1e-6  # four orthogonal directions: the two copies look unrelated


# ---- special completions -----------------------------------------------------------------------------------


@SETTINGS
@given(seed=st.integers(0, 10**6), n=st.integers(2, 6), whitening=st.sampled_from(MODES))
def test_a_completion_equal_to_the_truth_aligns_best(seed: int, n: int, whitening: Whitening) -> None:
    generated = unit_rows(random_features(seed, n, 256))
    truth = generated[1]
    alignment, diversity = feature_matching_rewards(generated, truth, whitening)
    assert torch.isfinite(alignment).all()
    assert torch.isfinite(diversity).all()
    assert int(alignment.argmax()) == 1
    exact = {"none": 2.0, "plain": 2.0 * n, "paper": 2.0, "both": 2.0, "truth": 2.0 * n**0.5}
    if whitening in exact:
        assert float(alignment[1]) == pytest.approx(exact[whitening], abs=1e-8)
        if whitening != "none":
            assert alignment[[j for j in range(n) if j != 1]].abs().max() < 1e-8


def test_the_truth_group_takes_the_truths_features() -> None:
    base = unit_rows(random_features(3, 4, 64))
    generated = with_bf16_noise(base[[0, 1, 1, 2]], 4)
    truth = base[1].float()
    groups, truth_group = torch.tensor([0, 1, 1, 3]), torch.tensor(1)
    alignment, _ = feature_matching_rewards(generated, truth, "paper", groups, truth_group)
    # The lemma with the truth among the completions, n_k = 2: x is a unit vector.
    assert alignment.tolist() == pytest.approx([0, 2, 2, 0], abs=1e-8)
    unaware, _ = feature_matching_rewards(generated, truth, "paper", groups)
    assert (alignment - unaware).abs().max() > 1e-4
    nowhere = feature_matching_rewards(generated, truth, "paper", groups, torch.tensor(-1))[0]
    assert torch.equal(nowhere, unaware)


@pytest.mark.parametrize("whitening", MODES)
def test_zero_features_give_finite_rewards(whitening: Whitening) -> None:
    generated, truth = random_features(0, 5, 8), random_features(1, 8)
    cases = [
        (torch.zeros_like(generated), truth),
        (generated, torch.zeros_like(truth)),
        (torch.zeros_like(generated), torch.zeros_like(truth)),
    ]
    for row in range(5):
        holed = generated.clone()
        holed[row] = 0
        cases.append((holed, truth))
    for g, t in cases:
        for term in feature_matching_rewards(g, t, whitening):
            assert torch.isfinite(term).all()


@pytest.mark.parametrize("whitening", MODES)
def test_a_zero_feature_vector_aligns_with_nothing(whitening: Whitening) -> None:
    for n in range(2, 7):
        for row in range(n):
            generated, truth = random_features(10 * n + row, n, 8), random_features(1, 8)
            generated[row] = 0
            alignment, diversity = feature_matching_rewards(generated, truth, whitening)
            assert float(alignment[row]) == pytest.approx(0, abs=1e-6)
            assert float(diversity[row]) == pytest.approx(0, abs=1e-6)


def test_a_single_sample_has_no_diversity() -> None:
    generated, truth = random_features(5, 1, 8), random_features(6, 8)
    k, K = float(generated[0] @ truth), float(generated[0] @ generated[0])
    sign = 1 if k > 0 else -1
    expected = {"none": 2 * k, "plain": 2 * k / K, "paper": 2 * sign, "both": 2 * sign, "truth": 2 * sign}
    expected["reference"] = 2 * k / (K**0.5 * float(truth.norm()))
    for whitening in MODES:
        alignment, diversity = feature_matching_rewards(generated, truth, whitening)
        assert diversity.tolist() == [0.0]
        assert float(alignment[0]) == pytest.approx(expected[whitening], abs=1e-9)


# ---- numbers of the reference implementation ---------------------------------------------------------------

# One context each of the reference implementation's own inputs and outputs (float32, before the factor 2). The features
# have 24 entries; here they are coordinates in an orthonormal basis of their span, truth first.
REFERENCE_CASES = {
    "random": (
        [
            [1.0, 0.0, 0.0, 0.0, 0.0],
            [0.928496, 0.371343, 0.0, 0.0, 0.0],
            [0.919863, 0.189393, 0.343486, 0.0, 0.0],
            [0.913096, 0.161273, 0.104652, 0.359576, 0.0],
            [0.899312, 0.142648, 0.01354, 0.221956, 0.348484],
        ],
        [0.505112, 0.495323, 0.444864, 0.456567],
        [0.0, 0.0, 0.0, 0.0],
    ),
    "two equal": (
        [
            [1.0, 0.0, 0.0, 0.0],
            [0.918717, 0.394917, 0.0, 0.0],
            [0.918717, 0.394917, 0.0, 0.0],
            [0.91521, 0.098659, 0.390713, 0.0],
            [0.905727, 0.122675, 0.058265, 0.401517],
        ],
        [0.640287, 0.640287, 0.513231, 0.486822],
        [0.166667, 0.166667, 0.0, 0.0],
    ),
    "three equal": (
        [
            [1.0, 0.0, 0.0],
            [0.913742, 0.406296, 0.0],
            [0.913742, 0.406296, 0.0],
            [0.913742, 0.406296, 0.0],
            [0.900658, 0.066169, 0.42946],
        ],
        [0.772306, 0.772306, 0.772306, 0.54215],
        [0.222222, 0.222222, 0.222222, 0.0],
    ),
    "two samples": (
        [[1.0, 0.0, 0.0], [0.949354, 0.31421, 0.0], [0.92353, 0.086739, 0.373588]],
        [0.720325, 0.636976],
        [0.0, 0.0],
    ),
    "a zero row": (
        [
            [1.0, 0.0, 0.0, 0.0],
            [0.943479, 0.331433, 0.0, 0.0],
            [0.873851, 0.229456, 0.428642, 0.0],
            [0.928653, 0.085049, 0.092889, 0.348914],
            [0.0, 0.0, 0.0, 0.0],
        ],
        [0.622872, 0.436859, 0.585292, 0.0],
        [0.0, 0.0, 0.0, 0.0],
    ),
    "a negative sign": (
        [
            [1.0, 0.0, 0.0, 0.0, 0.0],
            [0.101223, 0.994864, 0.0, 0.0, 0.0],
            [-0.255593, 0.654769, 0.711301, 0.0, 0.0],
            [0.37428, 0.762868, -0.230337, 0.474228, 0.0],
            [0.049099, 0.728056, -0.490874, -0.457277, 0.132154],
        ],
        [-0.272989, -0.414834, 0.324707, -0.15068],
        [0.0, 0.0, 0.0, 0.0],
    ),
}


@pytest.mark.parametrize("case", REFERENCE_CASES)
def test_reference_equals_the_reference_implementation(case: str) -> None:
    features, their_alignment, their_diversity = REFERENCE_CASES[case]
    truth, *generated = torch.tensor(features)
    alignment, diversity = feature_matching_rewards(torch.stack(generated), truth, "reference")
    assert alignment.tolist() == pytest.approx([2 * x for x in their_alignment], abs=5e-6)
    assert diversity.tolist() == pytest.approx([2 * x for x in their_diversity], abs=5e-6)


# ---- groups ------------------------------------------------------------------------------------------------

TOKENS = st.lists(st.lists(st.integers(0, 1), min_size=3, max_size=3), min_size=1, max_size=6)


@SETTINGS
@given(completions=TOKENS, truth=st.lists(st.integers(0, 1), min_size=3, max_size=3))
def test_groups_equal_loops(completions: list[list[int]], truth: list[int]) -> None:
    first_equal = [completions.index(c) for c in completions]
    groups = token_groups(torch.tensor(completions))
    assert groups.tolist() == first_equal
    expected = completions.index(truth) if truth in completions else -1
    assert int(truth_groups(torch.tensor(completions), torch.tensor(truth), groups)) == expected


def test_groups_of_a_batch() -> None:
    completions = torch.tensor([[[1, 2], [3, 4], [1, 2]], [[5, 6], [5, 6], [7, 8]]])
    groups = token_groups(completions)
    assert groups.tolist() == [[0, 1, 0], [0, 0, 2]]
    assert truth_groups(completions, torch.tensor([[1, 2], [1, 2]]), groups).tolist() == [0, -1]
    own_numbers = torch.tensor([[7, 3, 7], [4, 4, 9]])
    assert truth_groups(completions, torch.tensor([[3, 4], [5, 6]]), own_numbers).tolist() == [3, 4]


# ---- bad input ---------------------------------------------------------------------------------------------


def poisoned(value: float) -> Tensor:
    features = torch.ones(2, 4)
    features[1, 2] = value
    return features


BAD_INPUTS = {
    "NaN among the samples": (poisoned(float("nan")), torch.ones(4), {}, r"generated features contain NaN"),
    "infinity in the truth": (
        torch.ones(2, 2, 4),
        poisoned(float("inf")),
        {},
        r"truth features contain NaN or infinity",
    ),
    "different widths": (
        torch.ones(2, 4),
        torch.ones(5),
        {},
        r"generated has 4, truth has 5; both must come from the same",
    ),
    "different contexts": (torch.ones(3, 2, 4), torch.ones(2, 4), {}, r"describe different contexts"),
    "no samples": (torch.ones(0, 4), torch.ones(4), {}, r"no samples; n must be at least 1"),
    "no sample dimension": (torch.ones(4), torch.ones(4), {}, r"generated must be \[\.\.\., n, D\]"),
    "unknown whitening": (
        torch.ones(2, 4),
        torch.ones(4),
        {"whitening": "zca"},
        r"whitening='zca' is not one of none, plain",
    ),
    "groups of another shape": (
        torch.ones(2, 4),
        torch.ones(4),
        {"groups": torch.zeros(3, dtype=torch.long)},
        r"groups has shape \(3,\) but there are \(2,\) samples",
    ),
}


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_bad_input_is_told_in_one_line(name: str) -> None:
    generated, truth, options, expected = BAD_INPUTS[name]
    with pytest.raises(ValueError, match=expected) as caught:
        feature_matching_rewards(generated, truth, **options)
    assert "\n" not in str(caught.value)
