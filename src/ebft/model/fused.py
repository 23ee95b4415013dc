"""Linear maps of the same input as one product, in copies of a model that are ebft's own.

Queries, keys and values are three products of one input, gate and up two. One after the other they are small for a GPU,
and in the backward pass their gradients have to be added up. Here the first of them multiplies with all weights, one
below the other, and the others take their part of the result. Parameters keep their names, as views of the joint
weights; gradients arrive at the joint weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ebft.model.backbone import example_states

# Names that families give to linear maps of the same input, in the order in which they are called.
_TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class _First(nn.Linear):
    joint: tuple[Tensor, Tensor | None]  # weight and bias; no parameters of the module, which has its own part of them
    sizes: list[int]
    waiting: tuple[Tensor, ...] = ()  # parts of the last result that have not been asked for

    def forward(self, x: Tensor) -> Tensor:
        own, *rest = F.linear(x, *self.joint).split(self.sizes, -1)
        self.waiting = tuple(rest)
        return own


class _Next(nn.Linear):
    first: list[_First]  # in a list, so that it is nobody's child twice

    def forward(self, x: Tensor) -> Tensor:
        first = self.first[0]
        own, *rest = first.waiting
        first.waiting = tuple(rest)
        return own


Joint = tuple[list[Tensor], Tensor]  # parameters, one below the other, and the joint tensor that holds them


@torch.no_grad()
def fuse_projections(decoder: nn.Module) -> list[Joint]:
    """In place. Gradients of the parameters that are returned arrive at the joint tensors.

    Nothing is changed in a decoder that computes something else then: names do not say what a family does with them.
    """
    expected = example_states(decoder)
    found = [joint for module in decoder.modules() for linears in _groups(module) for joint in _fuse(linears)]
    try:
        difference = (example_states(decoder) - expected).norm() / expected.norm()
    except ValueError:  # somebody asked for a part before it was there
        difference = torch.full((), math.inf)
    if difference <= 8 * torch.finfo(expected.dtype).eps:
        return found
    for module in decoder.modules():
        if isinstance(module, _First | _Next):
            module.__class__ = nn.Linear  # type: ignore[assignment]
    return []


def _fuse(linears: list[nn.Linear]) -> Iterator[Joint]:
    first: Any = linears[0]
    first.sizes = [linear.out_features for linear in linears]
    weights: list[Tensor] = [linear.weight for linear in linears]
    biases: list[Tensor] = [linear.bias for linear in linears]
    first.joint = _join(weights), None if first.bias is None else _join(biases)
    first.__class__ = _First
    for linear in linears[1:]:
        other: Any = linear
        other.first, other.__class__ = [first], _Next
    for parts, joint in zip((weights, biases), first.joint, strict=True):
        if joint is not None:
            yield parts, joint


def _groups(module: nn.Module) -> Iterator[list[nn.Linear]]:
    for names in _TOGETHER:
        linears = [child for child in (getattr(module, name, None) for name in names) if type(child) is nn.Linear]
        if len(linears) == len(names) and len({_kind(linear) for linear in linears}) == 1:
            yield linears


def _kind(linear: nn.Linear) -> tuple[Any, ...]:
    weight = linear.weight
    return linear.in_features, linear.bias is None, weight.dtype, weight.device, weight.requires_grad


def _join(parameters: list[Tensor]) -> Tensor:
    joint = torch.cat([parameter.detach() for parameter in parameters])
    for parameter, part in zip(parameters, joint.split([len(p) for p in parameters]), strict=True):
        parameter.data = part
    return joint.requires_grad_(parameters[0].requires_grad)
