"""Jacobi's method against LAPACK."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ebft.method.whitening import _rounds, jacobi_eigh


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 17), st.integers(0, 17), st.integers(0, 10_000))
def test_jacobi_finds_eigenvalues_and_vectors(n: int, rank: int, seed: int) -> None:
    """Any rank, also 0; entries of any size."""
    g = torch.Generator().manual_seed(seed)
    factor = torch.randn(3, n, min(rank, n), generator=g, dtype=torch.float64) * 10 ** torch.randn(3, 1, 1, generator=g)
    K = factor @ factor.transpose(-1, -2)
    values, U = jacobi_eigh(K)
    scale = K.abs().amax((-1, -2), keepdim=True).clamp(min=1e-300)
    expected = torch.linalg.eigvalsh(K)
    assert bool(((values.sort(-1).values - expected).abs() <= 1e-12 * n * scale[..., 0]).all())
    assert bool(((U * values[..., None, :] @ U.transpose(-1, -2) - K).abs() <= 1e-12 * n * scale).all())
    torch.testing.assert_close(U.transpose(-1, -2) @ U, torch.eye(n, dtype=torch.float64).expand(3, n, n))


@pytest.mark.parametrize("n", [32, 64])
def test_jacobi_converges_for_many_samples(n: int) -> None:
    g = torch.Generator().manual_seed(0)
    features = torch.randn(n, 200, generator=g, dtype=torch.float64)
    features[1] = features[0]  # two equal samples
    K = features @ features.T
    values, U = jacobi_eigh(K)
    torch.testing.assert_close(values.sort().values, torch.linalg.eigvalsh(K), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(U * values @ U.T, K)


@pytest.mark.parametrize("n", range(1, 10))
def test_every_pair_meets_once_in_disjoint_rounds(n: int) -> None:
    met = []
    for p, q in _rounds(n, torch.device("cpu")):
        indices = [*p.tolist(), *q.tolist()]
        assert len(set(indices)) == len(indices)
        met += [tuple(sorted(pair)) for pair in zip(p.tolist(), q.tolist(), strict=True)]
    assert sorted(met) == [(a, b) for a in range(n) for b in range(a + 1, n)]
