"""What whitening takes from the n x n Gram matrix equals what the D-dimensional definitions give."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ebft.method.rewards import gram, whiten


def features(seed: int, n: int, D: int, distinct: int) -> tuple[Tensor, Tensor]:
    """n samples of which only `distinct` differ, and a truth, in float64."""
    g = torch.Generator().manual_seed(seed)
    rows = torch.randn(distinct, D, generator=g, dtype=torch.float64)
    return rows[torch.arange(n) % distinct], torch.randn(D, generator=g, dtype=torch.float64)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), n=st.integers(1, 9), D=st.integers(1, 12), distinct=st.integers(1, 9))
def test_whitened_products_equal_those_in_feature_space(seed: int, n: int, D: int, distinct: int) -> None:
    """By the singular value decomposition of the features themselves, any rank."""
    generated, truth = features(seed, n, D, min(distinct, n))
    found = whiten(gram(generated, truth))
    Phi = generated.T  # [D, n]
    U, S, Vh = torch.linalg.svd(Phi, full_matrices=False)
    kept = 1e-5 * S.max() < S
    U, S, Vh = U[:, kept], S[kept], Vh[kept]
    whitened = (U / S) @ U.T @ Phi  # (Phi Phi^T)^{dagger/2} Phi
    close = {"rtol": 1e-6, "atol": 1e-8}
    torch.testing.assert_close(found.projector, whitened.T @ whitened, **close)
    half_inverse = Vh.T @ torch.diag(1 / S) @ Vh  # K^{dagger/2}
    k = Phi.T @ truth
    torch.testing.assert_close(found.inverse_k, half_inverse @ half_inverse @ k, **close)
    torch.testing.assert_close(found.half_inverse_k, half_inverse @ k, **close)
    torch.testing.assert_close(found.half_inverse_sum, half_inverse.sum(1), **close)


def test_the_projector_of_groups_is_the_papers_lemma() -> None:
    """P_jj' is 1/n_k inside a group of n_k equal samples and 0 between groups."""
    generated, truth = features(0, 5, 8, 2)  # samples 0, 2, 4 are one group, 1 and 3 the other
    P = whiten(gram(generated, truth)).projector
    same = torch.arange(5)[:, None] % 2 == torch.arange(5) % 2
    sizes = torch.tensor([3.0, 2.0, 3.0, 2.0, 3.0], dtype=torch.float64)
    inside = same / sizes[:, None]
    torch.testing.assert_close(P.sum(1), torch.ones(5, dtype=torch.float64) * 1.0, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(P, inside, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("n", [1, 4])
def test_features_of_zero_whiten_to_zero(n: int) -> None:
    found = whiten(gram(torch.zeros(n, 3), torch.ones(3)))
    for value in vars(found).values():
        assert bool((value == 0).all())
