"""What is measured, apart from what is trained on. Each comes with a standard error over contexts or sequences."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ebft.method.rewards import check_features
from ebft.method.whitening import gram


class Estimate(NamedTuple):
    mean: Tensor
    standard_error: Tensor  # NaN for fewer than two observations


def conditional_feature_matching_loss(generated: Tensor, truth: Tensor) -> Tensor:
    """Unbiased estimate of || E phi(c:y_hat) - phi(c:y) ||^2 per context: [..., n, D], [..., D] -> [...].

    The plug-in || mean phi - psi ||^2 would be too high by Var(phi)/n; leaving the pairs j = j' out removes that.
    """
    check_features(generated, truth)
    n = generated.shape[-2]
    if n < 2:
        raise ValueError("the unbiased feature-matching loss needs n >= 2 samples per context; use samples >= 2")
    products = gram(generated, truth)
    pairs = products.K.sum((-1, -2)) - products.K.diagonal(dim1=-2, dim2=-1).sum(-1)
    return products.truth_norm**2 - 2 * products.k.mean(-1) + pairs / (n * (n - 1))


def whitened_proxy(alignment: Tensor, diversity: Tensor) -> Tensor:
    """mean_j (AT_j - DT_j / 2) per context: [..., n] -> [...]. Larger is better (the paper calls it a loss)."""
    return (alignment - diversity / 2).mean(-1)


def mean_and_standard_error(values: Tensor, mask: Tensor | None = None) -> Estimate:
    """Mean over independent observations, and its standard error."""
    values = (values if mask is None else values[mask]).double().flatten()
    if values.numel() == 0:
        raise ValueError("nothing to take the mean of: the mask is empty")
    if values.numel() == 1:
        return Estimate(values.mean(), values.new_full((), float("nan")))
    return Estimate(values.mean(), values.std() / values.numel() ** 0.5)


def cross_entropy(log_probs: Tensor, mask: Tensor) -> Estimate:
    """Cross-entropy per token over the tokens in `mask`, from log-probs of the truth [b, T] at temperature 1.

    The tokens of a sequence are not independent: the standard error is that of a ratio of sums over sequences.
    Give the answer flags as part of `mask` for the cross-entropy over answers.
    """
    return ratio_of_sums(-torch.where(mask, log_probs.double(), 0.0).sum(-1), mask.sum(-1))


def ratio_of_sums(sums: Tensor, counts: Tensor) -> Estimate:
    """Sum over sequences [b] of `sums` divided by that of `counts`, with the standard error of such a ratio."""
    sums, counts = sums.double(), counts.double()
    if not bool(counts.sum() > 0):
        raise ValueError("no token to take the cross-entropy over: the mask is empty")
    mean = sums.sum() / counts.sum()
    residuals = sums - mean * counts
    b = counts.numel()
    standard_error = (residuals.square().sum() * b / (b - 1)).sqrt() / counts.sum() if b > 1 else mean * float("nan")
    return Estimate(mean, standard_error)
