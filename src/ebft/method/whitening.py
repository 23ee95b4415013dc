"""What whitening needs, from the n x n Gram matrix alone.

With Phi [D, n] the features of the n samples and K = Phi^T Phi, the whitened features (Phi Phi^T)^{dagger/2} Phi
have inner products P = K^{dagger/2} K K^{dagger/2}, the projector onto the range of K. So an n x n
eigen-decomposition in float64 replaces the D-dimensional one of the paper.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

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
