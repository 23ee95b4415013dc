"""Rollouts of small models as CUDA graphs: their steps are over before the host has launched them.

A graph replays what it was captured on, so the tensors of a layout go in as inputs like any others.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ebft.method.layout import PackedLayout
from ebft.runtime.graphs import Graphs
from ebft.runtime.sharding import is_sharded

# A step of fewer floating-point operations than this is over before the host has launched it.
LAUNCH_BOUND = 1e13
GRAPHS: WeakKeyDictionary[nn.Module, Graphs] = WeakKeyDictionary()


def is_launch_bound(model: nn.Module, base: nn.Module, tokens: int, backend: str) -> bool:
    """Whether a step is so little work that a graph pays. Adapters and autocast change what a graph has frozen; shards
    are gathered to another place each time."""
    if backend != "flex" or model is not base or torch.is_autocast_enabled("cuda") or is_sharded(base):
        return False
    return 2.0 * tokens * sum(parameter.numel() for parameter in base.parameters()) < LAUNCH_BOUND


def replay(
    generate: Callable[..., tuple[Tensor, ...]],
    base: nn.Module,
    layout: PackedLayout,
    input_ids: Tensor,
    uniform: Tensor,
    options: tuple[Any, ...],
) -> tuple[Tensor, ...]:
    """generate(base, layout, input_ids, uniform, *options), captured for these shapes and options."""
    names, tensors = layout_tensors(layout)

    def captured(input_ids: Tensor, uniform: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        return generate(base, layout_with(layout, names, values), input_ids, uniform, *options)

    weights = hash(tuple(parameter.data_ptr() for parameter in base.parameters()))
    sizes = (layout.samples, layout.num_anchors, layout.horizon)
    key = (options, weights, names, layout.rows_alike, tuple(input_ids.shape), sizes)
    return GRAPHS.setdefault(base, Graphs()).run(key, captured, (input_ids, uniform, *tensors))


def layout_tensors(layout: PackedLayout) -> tuple[tuple[str, ...], tuple[Tensor, ...]]:
    """All tensors that may differ between batches of the same shape, with names."""
    found = {name: value for name, value in sorted(vars(layout).items()) if isinstance(value, Tensor)}
    return tuple(found), tuple(found.values())


def layout_with(layout: PackedLayout, names: Sequence[str], tensors: Sequence[Tensor]) -> PackedLayout:
    """The layout of another batch of the same shape."""
    other = copy.copy(layout)
    for name, value in zip(names, tensors, strict=True):
        setattr(other, name, value)
    # The only thing that is not a tensor and depends on the batch: unknown now, so nothing is left out.
    other.furthest_context = [layout.context_length] * layout.num_anchors
    return other
