"""Rewards: how well a sample's features align with the truth's, and how much the samples resemble each other.

The reward of sample j is `alignment_j - alpha * diversity_j` (paper, section on feature-matching rewards). Whitening
needs the n x n Gram matrix alone: with Phi [D, n] the features of the n samples, psi the truth's, K = Phi^T Phi and
k = Phi^T psi, the whitened features (Phi Phi^T)^{dagger/2} Phi have inner products P = K^{dagger/2} K K^{dagger/2}, the
projector onto the range of K. So an n x n eigen-decomposition in float64 replaces the D-dimensional one of the paper.
Six forms of the two terms exist:

none       2 k_j                                                       2/(n-1) sum_{j'!=j} K_jj'
plain      2 n (K^dagger k)_j                                          2n/(n-1) sum P_jj'
paper      2 (K^dagger k)_j / (sqrt(P_jj) |K^dagger k|)                as plain        (the paper's variant i)
both       as paper                                                    2/(n-1) sum P_jj' / sqrt(P_jj P_j'j')   (ii)
truth      2 sqrt(n) (K^dagger k)_j / |K^dagger k|                     as plain                               (iii)
reference  2 sign((K^{dagger/2} 1)_j) (K^{dagger/2} k)_j / (sqrt(P_jj) |psi|)       2/(n-1) sum P_jj'

`reference` is what the authors' released code computes and what the published numbers come from.

The advantage is the reward minus a leave-one-out baseline that does not depend on the sample itself. The plain mean of
the other rewards will not do: their diversity terms contain this sample. Taking its share out of them gives the paper's
baseline (appendix on the RLOO baseline)

    b_j = 1/(n-1) sum_{j'!=j} T1_j' - 1/(n-2) sum_{j'!=j} T2_j' + 1/(n-2) T2_j,  T1 = alignment, T2 = alpha*diversity
"""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor

from ebft.method import Whitening

# Eigenvalues of K below this share of the largest count as zero. They are squares of singular values: 1e-10 means
# directions of relative size 1e-5, well above float32 rounding of the features and below any real difference.
RELATIVE_TOLERANCE = 1e-10


def _products(generated: Tensor, truth: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """In float64: K [..., n, n] of samples with samples, k [..., n] of samples with the truth, and the truth's norm."""
    generated, truth = generated.double(), truth.double()
    return generated @ generated.transpose(-1, -2), (generated @ truth[..., None])[..., 0], truth.norm(dim=-1)


def feature_matching_rewards(
    generated: Tensor,
    truth: Tensor,
    whitening: Whitening = "reference",
    groups: Tensor | None = None,
    truth_group: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Alignment and diversity terms, both float64 [..., n].

    Args:
        generated: features of the n samples [..., n, D].
        truth: features of the truth [..., D].
        whitening: one of the six forms above.
        groups: integers [..., n]; samples with equal integers are the same completion and share one feature
            vector (see `token_groups`). Without it, two equal completions whose features differ by rounding are
            whitened into two independent directions.
        truth_group: integers [...]; samples whose group equals it are the truth itself and take its features.
    """
    if groups is not None:
        first = (groups[..., :, None] == groups[..., None, :]).to(torch.uint8).argmax(-1)
        generated = generated.gather(-2, first[..., None].expand_as(generated))
    if truth_group is not None:
        assert groups is not None, "truth_group is one of groups"
        is_truth = (groups == truth_group[..., None])[..., None]
        generated = torch.where(is_truth, truth[..., None, :].to(generated.dtype), generated)
    n = generated.shape[-2]
    others = max(n - 1, 1)  # a single sample has no others, and a diversity of 0
    K, k, truth_norm = _products(generated, truth)
    if whitening == "none":
        return 2 * k, 2 / others * _sum_over_others(K)

    eigenvalues, U = torch.linalg.eigh(K)
    tiny = torch.finfo(torch.float64).tiny
    kept = eigenvalues > RELATIVE_TOLERANCE * eigenvalues.amax(-1, keepdim=True).clamp(min=tiny)
    half_inverse = torch.where(kept, eigenvalues.where(kept, 1.0).rsqrt(), 0.0)  # K^{dagger/2} in the basis U
    k_in_U = (k[..., None, :] @ U)[..., 0, :]
    P = (U * kept[..., None, :]) @ U.transpose(-1, -2)
    own = P.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt()
    own = own.masked_fill(K.diagonal(dim1=-2, dim2=-1) == 0, 0.0)  # exactly, not up to rounding

    def back(coefficients: Tensor) -> Tensor:
        return (U @ coefficients[..., None])[..., 0]

    if whitening == "reference":
        signed = back(half_inverse * U.sum(-2)).sign() * back(half_inverse * k_in_U)
        return 2 * _ratio(signed, own * truth_norm[..., None]), 2 / others * _sum_over_others(P)

    inverse_k = back(half_inverse**2 * k_in_U)
    projected_truth = inverse_k.norm(dim=-1, keepdim=True)
    diversity = 2 * n / others * _sum_over_others(P)
    if whitening == "plain":
        return 2 * n * inverse_k, diversity
    if whitening == "truth":
        return 2 * n**0.5 * _ratio(inverse_k, projected_truth), diversity
    alignment = 2 * _ratio(inverse_k, own * projected_truth)
    if whitening == "paper":
        return alignment, diversity
    if whitening != "both":
        raise ValueError(f"whitening={whitening!r} is not one of {', '.join(get_args(Whitening))}")
    cosines = _ratio(P, own[..., :, None] * own[..., None, :])
    return alignment, 2 / others * _sum_over_others(cosines)


def conditional_feature_matching_loss(generated: Tensor, truth: Tensor) -> Tensor:
    """Unbiased estimate of || E phi(c:y_hat) - phi(c:y) ||^2 per context: [..., n, D], [..., D] -> [...]. The plug-in
    || mean phi - psi ||^2 would be too high by Var(phi)/n; leaving the pairs j = j' out removes that. NaN for n = 1."""
    n = generated.shape[-2]
    K, k, truth_norm = _products(generated, truth)
    pairs = K.sum((-1, -2)) - K.diagonal(dim1=-2, dim2=-1).sum(-1)
    return truth_norm**2 - 2 * k.mean(-1) + pairs / (n * (n - 1))


def whitened_proxy(alignment: Tensor, diversity: Tensor) -> Tensor:
    """mean_j (AT_j - DT_j / 2) per context: [..., n] -> [...]. Larger is better (the paper calls it a loss)."""
    return (alignment - diversity / 2).mean(-1)


def token_groups(completions: Tensor, dim: int = -1) -> Tensor:
    """For completions [..., n, G], the number of the first sample with the same tokens: [..., n]."""
    tokens = completions.movedim(dim, -1)
    same = (tokens[..., :, None, :] == tokens[..., None, :, :]).all(-1)
    return same.to(torch.uint8).argmax(-1)


def truth_groups(completions: Tensor, truth: Tensor, groups: Tensor) -> Tensor:
    """The group of the samples that equal the truth [..., G] token for token, or -1: [...]."""
    same = (completions == truth[..., None, :]).all(-1)
    first = same.to(torch.uint8).argmax(-1, keepdim=True)
    return torch.where(same.any(-1), groups.gather(-1, first)[..., 0], -1)


def _sum_over_others(matrix: Tensor) -> Tensor:
    return matrix.sum(-1) - matrix.diagonal(dim1=-2, dim2=-1)


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """0 where the denominator is 0: a zero feature vector aligns with nothing."""
    zero = denominator == 0
    return torch.where(zero, 0.0, numerator / denominator.masked_fill(zero, 1.0))


def leave_one_out_advantages(alignment: Tensor, diversity: Tensor, alpha: float = 1.0) -> Tensor:
    """alignment_j - alpha * diversity_j - b_j for terms [..., n]. For n >= 3 they sum to zero over a context. The T2
    part of the baseline b_j needs n >= 3 and is dropped for n = 2; a single sample has no baseline."""
    n, penalty = alignment.shape[-1], alpha * diversity
    baseline = torch.zeros_like(alignment)
    if n >= 2:
        baseline = (alignment.sum(-1, keepdim=True) - alignment) / (n - 1)
    if n >= 3:
        baseline = baseline - (penalty.sum(-1, keepdim=True) - 2 * penalty) / (n - 2)
    return alignment - penalty - baseline
