"""Advantages: the reward minus a leave-one-out baseline that does not depend on the sample itself.

The plain leave-one-out mean of rewards will not do: the diversity terms of the other samples contain this one.
Taking this sample's share out of them gives the paper's baseline (appendix on the RLOO baseline)

    b_j = 1/(n-1) sum_{j'!=j} T1_j' - 1/(n-2) sum_{j'!=j} T2_j' + 1/(n-2) T2_j,  T1 = alignment, T2 = alpha*diversity
"""

from __future__ import annotations

from torch import Tensor


def leave_one_out_baseline(alignment: Tensor, diversity: Tensor, alpha: float = 1.0) -> Tensor:
    """b_j for terms [..., n]. The T2 part needs n >= 3 and is dropped for n = 2; a single sample has no baseline."""
    n = alignment.shape[-1]
    penalty = alpha * diversity
    baseline = alignment.new_zeros(alignment.shape)
    if n >= 2:
        baseline = (alignment.sum(-1, keepdim=True) - alignment) / (n - 1)
    if n >= 3:
        baseline = baseline - (penalty.sum(-1, keepdim=True) - 2 * penalty) / (n - 2)
    return baseline


def leave_one_out_advantages(alignment: Tensor, diversity: Tensor, alpha: float = 1.0) -> Tensor:
    """alignment_j - alpha * diversity_j - b_j for terms [..., n]. For n >= 3 they sum to zero over a context."""
    if alignment.shape != diversity.shape:
        raise ValueError(f"alignment {tuple(alignment.shape)} and diversity {tuple(diversity.shape)} differ in shape")
    if alignment.dim() < 1 or alignment.shape[-1] < 1:
        raise ValueError("advantages need at least one sample per context")
    return alignment - alpha * diversity - leave_one_out_baseline(alignment, diversity, alpha)
