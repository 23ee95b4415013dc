"""Gradients that stay at one place, for graphs and products that add to them."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FixedGradients:
    """A gradient for every parameter that trains. An optimiser that drops gradients after its step drops only its view
    of them: `attach` puts them back, at 0."""

    def __init__(self, module: nn.Module) -> None:
        self._kept: dict[nn.Parameter, Tensor | None] = {p: None for p in module.parameters() if p.requires_grad}

    def together(self, parameters: list[nn.Parameter]) -> Tensor:
        """The gradients of these, one below the other in one tensor; before the first `attach`."""
        rows = [len(parameter) for parameter in parameters]
        joint = parameters[0].new_zeros(sum(rows), *parameters[0].shape[1:], requires_grad=False)
        for parameter, part in zip(parameters, joint.split(rows), strict=True):
            assert self._kept[parameter] is None
            self._kept[parameter] = part
        return joint

    @torch.no_grad()
    def attach(self) -> None:
        dropped = []
        for parameter, kept in self._kept.items():
            if kept is None:
                kept = self._kept[parameter] = torch.zeros_like(parameter)
            if parameter.grad is None:
                dropped.append(kept)
            elif parameter.grad is not kept:
                kept.copy_(parameter.grad)
            parameter.grad = kept
        if dropped:
            torch._foreach_zero_(dropped)
