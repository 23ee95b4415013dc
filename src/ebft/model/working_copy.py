"""Weights in bf16 to compute with, beside the float32 weights that are trained.

At learning rate 1e-6 a bf16 weight does not move, so the optimiser keeps float32 ones. Autocast would compute norms and
residuals in float32, twice the bytes: here every pass runs on a bf16 copy. Its gradients are added to the float32
weights' as soon as a parameter has one, in float32, so that many micro-batches lose nothing to rounding; after the
optimiser's step the copy is refreshed.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn


def copy_in_dtype(module: nn.Module, dtype: torch.dtype | None) -> tuple[Any, list[tuple[nn.Parameter, nn.Parameter]]]:
    """A copy with its parameters in `dtype`, and the pairs (original, copied). Not its buffers: frequencies of rotary
    embeddings in bf16 would turn every position into another one. No copy in the old precision is made on the way."""
    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        copied = parameter.detach().to(dtype or parameter.dtype, copy=True)
        memo[id(parameter)] = nn.Parameter(copied, parameter.requires_grad)
    pairs = [(parameter, memo[id(parameter)]) for parameter in module.parameters()]
    return copy.deepcopy(module, memo), pairs


class WorkingCopy:
    """`model` computes, in `dtype`; `trained` is what the optimiser sees, what is saved and what is resumed."""

    def __init__(self, trained: nn.Module, dtype: torch.dtype = torch.bfloat16) -> None:
        self.trained = trained
        self.model, self._pairs = copy_in_dtype(trained, dtype)
        for parameter, copied in self._pairs:
            if copied.requires_grad:
                copied.register_post_accumulate_grad_hook(partial(_hand_over, parameter))

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over the trained weights; call it whenever they may have changed."""
        torch._foreach_copy_([copied for _, copied in self._pairs], [parameter for parameter, _ in self._pairs])


def _hand_over(trained: nn.Parameter, copied: Tensor) -> None:
    """Move the gradient of a copy to its original."""
    gradient, copied.grad = copied.grad, None
    assert gradient is not None
    if trained.grad is None:
        trained.grad = gradient.to(trained.dtype)
    else:
        trained.grad.add_(gradient)
