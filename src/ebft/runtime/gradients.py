"""Gradients that stay at one place, for graphs that add to them."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FixedGradients:
    """A gradient for every parameter that trains. An optimiser that drops gradients after its step drops only its view
    of them: `attach` puts them back, at 0."""

    def __init__(self, module: nn.Module) -> None:
        self._parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._kept: list[Tensor] = []

    @torch.no_grad()
    def attach(self) -> None:
        if not self._kept:
            self._kept = [torch.empty_like(parameter) for parameter in self._parameters]
        dropped = []
        for parameter, kept in zip(self._parameters, self._kept, strict=True):
            if parameter.grad is None:
                dropped.append(kept)
            elif parameter.grad is not kept:
                kept.copy_(parameter.grad)
            parameter.grad = kept
        if dropped:
            torch._foreach_zero_(dropped)
