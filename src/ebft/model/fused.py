"""Linear maps as fewer and larger products, in copies of a model that are ebft's own.

Queries, keys and values are three products of one input, gate and up two. One after the other they are small for a GPU.
Here the first of them multiplies with all weights, one below the other, and the others take their part of the result.
Where the gradients of micro-batches are added up in float32, the product that makes a weight's gradient adds it: as a
step of its own, that reads and writes every gradient once more. Parameters keep their names, as views of the joint
weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ebft.model.backbone import example_states

# Names that families give to linear maps of the same input, in the order in which they are called.
_TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))

# What to add the gradient of some weights to, one below the other.
Totals = Callable[[list[Tensor]], Tensor]


@torch.library.custom_op("ebft::add_product", mutates_args=("total",))
def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a^T b, in the precision of `total`. An operator of its own, because a compiler that looked inside would
    write the product down first."""
    if total.is_cuda and total.dtype != a.dtype:
        torch.addmm(total, a.t(), b, out_dtype=total.dtype, out=total)
    else:
        total.addmm_(a.t().to(total.dtype), b.to(total.dtype))


@add_product.register_fake
def _(total: Tensor, a: Tensor, b: Tensor) -> None:
    pass


class _Product(torch.autograd.Function):
    """x W^T + bias in parts, for the weights and biases of one or more linear maps.

    weight, bias: all of them, one below the other. total: takes the weights' gradient, which autograd then never sees.
    parameters: the weights and, where there is a bias, the biases; autograd sees the gradients of these.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, total: Tensor | None, *parameters: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x, weight)
        ctx.total, ctx.has_bias = total, bias is not None
        ctx.sizes = [len(p) for p in (parameters if bias is None else parameters[len(parameters) // 2 :])]
        return F.linear(x, weight, bias).split(ctx.sizes, -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        sizes = ctx.sizes
        # Narrow ones (keys and values of few heads) make poor products; wide ones cost more to write side by side.
        apart = min(sizes) > x.shape[-1]
        parts = gradients if apart else (torch.cat(gradients, -1),)
        grad_x = sum(g @ w for g, w in zip(parts, weight.split(sizes if apart else [sum(sizes)]), strict=True))
        rows, x_rows = [g.flatten(0, -2) for g in parts], x.flatten(0, -2)
        weights: list[Tensor | None] = [None] * len(sizes)
        if ctx.total is None:
            products = [g.t() @ x_rows for g in rows]
            weights = [*(products if apart else products[0].split(sizes))]
        else:
            for g, part in zip(rows, ctx.total.split(sizes) if apart else [ctx.total], strict=True):
                add_product(part, g, x_rows)
        biases: list[Tensor] = [g.flatten(0, -2).sum(0) for g in gradients] if ctx.has_bias else []
        return grad_x, None, None, None, *weights, *biases


class _First(nn.Linear):
    # Of all maps of the group; in lists, so that they are nobody's parameters twice. See `_Product`.
    joint: tuple[Tensor, Tensor | None, Tensor | None]  # weight, bias, total
    parts: list[Tensor]
    sizes: list[int]
    waiting: tuple[Tensor, ...] = ()  # parts of the last result that have not been asked for

    def forward(self, x: Tensor) -> Tensor:
        weight, bias, total = self.joint
        if torch.is_grad_enabled():
            own, *rest = _Product.apply(x, weight, bias, total, *self.parts)
        else:
            own, *rest = F.linear(x, weight, bias).split(self.sizes, -1)
        self.waiting = tuple(rest)
        return own


class _Next(nn.Linear):
    first: list[_First]  # in a list, so that it is nobody's child twice

    def forward(self, x: Tensor) -> Tensor:
        first = self.first[0]
        own, *rest = first.waiting
        first.waiting = tuple(rest)
        return own


@torch.no_grad()
def fuse_projections(decoder: nn.Module, totals: Totals | None = None) -> int:
    """In place; how many products make up for several now.

    totals: gradients of weights are added to these, and autograd never sees them. Also those of single products.

    Nothing is changed in a decoder that computes something else then: names do not say what a family does with them.
    """
    expected = example_states(decoder)
    groups = [linears for module in decoder.modules() for linears in _groups(module)]
    if totals is not None:
        grouped = {linear for linears in groups for linear in linears}
        singles = [module for module in decoder.modules() if type(module) is nn.Linear and module not in grouped]
        groups += [[linear] for linear in singles]
    for linears in groups:
        _fuse(linears, totals)
    try:
        difference = (example_states(decoder) - expected).norm() / expected.norm()
    except ValueError:  # somebody asked for a part before it was there
        difference = torch.full((), math.inf)
    if difference <= 8 * torch.finfo(expected.dtype).eps:
        return sum(len(linears) > 1 for linears in groups)
    for module in decoder.modules():
        if isinstance(module, _First | _Next):
            module.__class__ = nn.Linear  # type: ignore[assignment]
    return 0


def _fuse(linears: list[nn.Linear], totals: Totals | None) -> None:
    first: Any = linears[0]
    weights: list[Tensor] = [linear.weight for linear in linears]
    biases: list[Tensor] = [linear.bias for linear in linears if linear.bias is not None]
    total = totals(weights) if totals is not None and weights[0].requires_grad else None
    first.joint = _join(weights), _join(biases) if biases else None, total
    first.parts, first.sizes = [*weights, *biases], [linear.out_features for linear in linears]
    first.__class__ = _First
    for linear in linears[1:]:
        other: Any = linear
        other.first, other.__class__ = [first], _Next


def _groups(module: nn.Module) -> Iterator[list[nn.Linear]]:
    for names in _TOGETHER:
        linears = [child for child in (getattr(module, name, None) for name in names) if type(child) is nn.Linear]
        if len(linears) == len(names) and len({_kind(linear) for linear in linears}) == 1:
            yield linears


def _kind(linear: nn.Linear) -> tuple[Any, ...]:
    weight = linear.weight
    return linear.in_features, linear.bias is None, weight.dtype, weight.device, weight.requires_grad


def _join(parameters: list[Tensor]) -> Tensor:
    if len(parameters) == 1:
        return parameters[0].detach()
    joint = torch.cat([parameter.detach() for parameter in parameters])
    for parameter, part in zip(parameters, joint.split([len(p) for p in parameters]), strict=True):
        parameter.data = part
    return joint
