"""What whitening needs, from the n x n Gram matrix alone.

With Phi [D, n] the features of the n samples and K = Phi^T Phi, the whitened features (Phi Phi^T)^{dagger/2} Phi
have inner products P = K^{dagger/2} K K^{dagger/2}, the projector onto the range of K. So an n x n
eigen-decomposition in float64 replaces the D-dimensional one of the paper.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from ebft.runtime.graphs import Graphs

# Eigenvalues of K below this share of the largest count as zero. They are squares of singular values: 1e-10 means
# directions of relative size 1e-5, well above float32 rounding of the features and below any real difference.
RELATIVE_TOLERANCE = 1e-10


@dataclass(frozen=True)
class Gram:
    """Inner products of one context's features, float64."""

    K: Tensor  # [..., n, n] samples with samples
    k: Tensor  # [..., n] samples with the truth
    truth_norm: Tensor  # [...] norm of the truth's features


@dataclass(frozen=True)
class WhitenedGram:
    projector: Tensor  # P [..., n, n]
    inverse_k: Tensor  # K^dagger k [..., n]
    half_inverse_k: Tensor  # K^{dagger/2} k [..., n]
    half_inverse_sum: Tensor  # K^{dagger/2} 1 [..., n]


def gram(generated: Tensor, truth: Tensor) -> Gram:
    """Gram matrix of generated [..., n, D] and its products with truth [..., D]."""
    generated, truth = generated.double(), truth.double()
    return Gram(
        K=generated @ generated.transpose(-1, -2),
        k=(generated @ truth[..., None])[..., 0],
        truth_norm=truth.norm(dim=-1),
    )


def whiten(products: Gram, tolerance: float = RELATIVE_TOLERANCE) -> WhitenedGram:
    if products.K.is_cuda:
        # torch.linalg.eigh looks at its result on the host, which then waits for the GPU. Ours is many small steps.
        eigenvalues, U = _GRAPHS.run(None, jacobi_eigh, [products.K])
    else:
        eigenvalues, U = torch.linalg.eigh(products.K)
    kept = eigenvalues > tolerance * eigenvalues.amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    half_inverse = torch.where(kept, eigenvalues.where(kept, 1.0).rsqrt(), 0.0)
    k_in_U = (products.k[..., None, :] @ U)[..., 0, :]
    one_in_U = U.sum(-2)

    def back(coefficients: Tensor) -> Tensor:
        return (U @ coefficients[..., None])[..., 0]

    return WhitenedGram(
        projector=(U * kept[..., None, :]) @ U.transpose(-1, -2),
        inverse_k=back(half_inverse**2 * k_in_U),
        half_inverse_k=back(half_inverse * k_in_U),
        half_inverse_sum=back(half_inverse * one_in_U),
    )


_GRAPHS = Graphs()


def jacobi_eigh(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues [..., n], in no order, and eigenvectors [..., n, n] as columns, of many small symmetric matrices.

    Every round rotates n/2 disjoint pairs of axes at once, so that a sweep over all pairs takes n - 1 rounds.
    """
    n = matrices.shape[-1]
    A, U = matrices, torch.eye(n, dtype=matrices.dtype, device=matrices.device).expand_as(matrices)
    eye = U
    # The method doubles its digits in every sweep once it is close; this many are past float64's (see the tests).
    for _ in range(6 + math.ceil(math.log2(max(n, 2)))):
        for p, q in _rounds(n, matrices.device):
            difference, product = A[..., q, q] - A[..., p, p], 2 * A[..., p, q]
            rotates = product != 0
            ratio = difference / product.where(rotates, 1.0)
            tangent = torch.where(ratio >= 0, 1.0, -1.0) / (ratio.abs() + (ratio.square() + 1).sqrt())
            tangent = torch.where(rotates, tangent, 0.0)
            cosine = (tangent.square() + 1).rsqrt()
            sine = tangent * cosine
            J = eye.clone()
            J[..., p, p] = cosine
            J[..., q, q] = cosine
            J[..., p, q] = sine
            J[..., q, p] = -sine
            A = J.transpose(-1, -2) @ A @ J
            U = U @ J
    return A.diagonal(dim1=-2, dim2=-1), U


@cache
def _rounds(n: int, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """All pairs of 0..n-1 in rounds of disjoint ones: a tournament in which everybody meets everybody."""
    players = list(range(n)) + ([-1] if n % 2 else [])
    rounds = []
    for _ in range(len(players) - 1):
        half = len(players) // 2
        pairs = [(a, b) for a, b in zip(players[:half], reversed(players[half:]), strict=True) if min(a, b) >= 0]
        if pairs:
            first, second = zip(*pairs, strict=True)
            rounds.append((torch.tensor(first, device=device), torch.tensor(second, device=device)))
        players = [players[0], players[-1], *players[1:-1]]
    return rounds
