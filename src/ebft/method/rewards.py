"""Rewards: how well a sample's features align with the truth's, and how much the samples resemble each other.

The reward of sample j is `alignment_j - alpha * diversity_j` (paper, section on feature-matching rewards). Six
forms of the two terms exist; with P, K and k as in whitening.py:

none       2 k_j                                                       2/(n-1) sum_{j'!=j} K_jj'
plain      2 n (K^dagger k)_j                                          2n/(n-1) sum P_jj'
paper      2 (K^dagger k)_j / (sqrt(P_jj) |K^dagger k|)                as plain        (the paper's variant i)
both       as paper                                                    2/(n-1) sum P_jj' / sqrt(P_jj P_j'j')   (ii)
truth      2 sqrt(n) (K^dagger k)_j / |K^dagger k|                     as plain                               (iii)
reference  2 sign((K^{dagger/2} 1)_j) (K^{dagger/2} k)_j / (sqrt(P_jj) |psi|)       2/(n-1) sum P_jj'

`reference` is what the authors' released code computes and what the published numbers come from.
"""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor

from ebft.method.choices import Whitening
from ebft.method.whitening import gram, whiten


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
    _check(generated, truth, whitening, groups)
    if truth_group is not None and (groups is None or truth_group.shape != truth.shape[:-1]):
        raise ValueError("truth_group needs groups, and one integer per context; see truth_groups")
    if groups is not None:
        generated = _share_features(generated, groups)
        if truth_group is not None:
            is_truth = (groups == truth_group[..., None])[..., None]
            generated = torch.where(is_truth, truth[..., None, :].to(generated.dtype), generated)
    n = generated.shape[-2]
    others = max(n - 1, 1)  # a single sample has no others, and a diversity of 0
    products = gram(generated, truth)
    if whitening == "none":
        return 2 * products.k, 2 / others * _sum_over_others(products.K)

    white = whiten(products)
    P, inverse_k = white.projector, white.inverse_k
    own = P.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt()
    own = own.masked_fill(products.K.diagonal(dim1=-2, dim2=-1) == 0, 0.0)  # exactly, not up to rounding
    if whitening == "reference":
        signed = white.half_inverse_sum.sign() * white.half_inverse_k
        alignment = 2 * _ratio(signed, own * products.truth_norm[..., None])
        return alignment, 2 / others * _sum_over_others(P)

    projected_truth = inverse_k.norm(dim=-1, keepdim=True)
    diversity = 2 * n / others * _sum_over_others(P)
    if whitening == "plain":
        return 2 * n * inverse_k, diversity
    if whitening == "truth":
        return 2 * n**0.5 * _ratio(inverse_k, projected_truth), diversity
    alignment = 2 * _ratio(inverse_k, own * projected_truth)
    if whitening == "paper":
        return alignment, diversity
    assert whitening == "both", f"no formula for whitening={whitening!r}"
    cosines = _ratio(P, own[..., :, None] * own[..., None, :])
    return alignment, 2 / others * _sum_over_others(cosines)


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


def _share_features(generated: Tensor, groups: Tensor) -> Tensor:
    first = (groups[..., :, None] == groups[..., None, :]).to(torch.uint8).argmax(-1)
    return generated.gather(-2, first[..., None].expand_as(generated))


def _sum_over_others(matrix: Tensor) -> Tensor:
    return matrix.sum(-1) - matrix.diagonal(dim1=-2, dim2=-1)


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """0 where the denominator is 0: a zero feature vector aligns with nothing."""
    zero = denominator == 0
    return torch.where(zero, 0.0, numerator / denominator.masked_fill(zero, 1.0))


def _check(generated: Tensor, truth: Tensor, whitening: str, groups: Tensor | None) -> None:
    if whitening not in get_args(Whitening):
        raise ValueError(f"whitening={whitening!r} is not one of {', '.join(get_args(Whitening))}")
    check_features(generated, truth)
    if groups is not None and groups.shape != generated.shape[:-1]:
        raise ValueError(f"groups has shape {tuple(groups.shape)} but there are {tuple(generated.shape[:-1])} samples")


def check_features(generated: Tensor, truth: Tensor) -> None:
    if generated.dim() < 2 or truth.dim() < 1:
        raise ValueError("generated must be [..., n, D] and truth [..., D]")
    if generated.shape[-1] != truth.shape[-1]:
        raise ValueError(
            f"features of different width: generated has {generated.shape[-1]}, truth has {truth.shape[-1]}; "
            "both must come from the same feature network"
        )
    if generated.shape[:-2] != truth.shape[:-1]:
        raise ValueError(
            f"generated {tuple(generated.shape)} and truth {tuple(truth.shape)} describe different contexts"
        )
    if generated.shape[-2] < 1:
        raise ValueError("generated holds no samples; n must be at least 1")
    for name, value in (("generated", generated), ("truth", truth)):
        if value.is_cuda:
            continue  # asking would wait for the device; bad features show in the rewards
        if not bool(torch.isfinite(value).all()):
            raise ValueError(f"{name} features contain NaN or infinity; the feature network's weights or input are bad")
