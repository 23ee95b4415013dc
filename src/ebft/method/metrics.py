"""What is measured, apart from what is trained on. Each comes with a standard error over contexts or sequences."""

from __future__ import annotations

import torch
from torch import Tensor

from ebft.method.ratios import Estimate, ratio_of_sums
from ebft.method.rewards import check_features, gram


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
    chosen = (values if mask is None else values[mask]).double().flatten().tolist()
    return ratio_of_sums(chosen, [1.0] * len(chosen))


def cross_entropy(log_probs: Tensor, mask: Tensor) -> Estimate:
    """Cross-entropy per token over the tokens in `mask`, from log-probs of the truth [b, T] at temperature 1.

    The tokens of a sequence are not independent: the standard error is that of a ratio of sums over sequences.
    Give the answer flags as part of `mask` for the cross-entropy over answers.
    """
    return ratio_of_sums((-torch.where(mask, log_probs.double(), 0.0).sum(-1)).tolist(), mask.sum(-1).tolist())
