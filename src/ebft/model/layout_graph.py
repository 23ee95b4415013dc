"""Passes over packed sequences as CUDA graphs: those of small models are over before the host has launched them.

A graph replays what it was captured on, so the tensors of a layout go in as inputs like any others.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ebft.method.layout import PackedLayout
from ebft.runtime.graphs import Graphs
from ebft.runtime.sharding import is_sharded

# A pass of fewer floating-point operations than this is over before the host has launched it. Above, a graph brings
# nothing and keeps memory (Qwen2.5-1.5B, an update of 2 x 4576 tokens: the same time, 12 GiB more).
LAUNCH_BOUND = 1e13
GRAPHS: WeakKeyDictionary[nn.Module, Graphs] = WeakKeyDictionary()
_WEIGHTS: WeakKeyDictionary[nn.Module, float] = WeakKeyDictionary()


def is_launch_bound(network: nn.Module, tokens: float, backend: str) -> bool:
    """Whether a forward pass over so many tokens is so little work that a graph pays. Shards are gathered to another
    place each time, and weights of few bits may be unpacked in ways that a graph does not know."""
    return backend == "flex" and 2.0 * tokens * _weights_of(network) < LAUNCH_BOUND


def _weights_of(network: nn.Module) -> float:
    """How many there are; infinitely many where a graph cannot follow. Asked once: walking over modules takes longer
    than a small graph."""
    if network not in _WEIGHTS:
        weights = list(network.parameters())
        fixed = not is_sharded(network) and all(weight.is_floating_point() for weight in weights)
        _WEIGHTS[network] = float(sum(weight.numel() for weight in weights)) if fixed else math.inf
    return _WEIGHTS[network]


def replay_network(
    function: Callable[..., Any],
    network: nn.Module,
    layout: PackedLayout,
    tensors: Sequence[Tensor],
    options: Hashable,
    rehearsal: Sequence[Tensor] | None = None,
) -> Any:
    """function(layout, *tensors), which runs the network, as a graph for these shapes.

    options: what tells the function from others that run the network.
    rehearsal: instead of the tensors, before the capture (`Graphs.run`).
    """
    enabled, dtype = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")

    def run(layout: PackedLayout, *values: Tensor) -> Any:
        # Autocast would otherwise keep what it has cast, and the graph would not cast it again.
        with torch.autocast("cuda", dtype, enabled, cache_enabled=False):
            return function(layout, *values)

    key = (options, network.training, _state(network), enabled, dtype)
    return replay(run, GRAPHS.setdefault(network, Graphs()), layout, tensors, key, rehearsal)


def replay(
    function: Callable[..., Any],
    graphs: Graphs,
    layout: PackedLayout,
    tensors: Sequence[Tensor],
    options: Hashable,
    rehearsal: Sequence[Tensor] | None = None,
) -> Any:
    """function(layout, *tensors) as one of these graphs."""
    names, of_layout = layout_tensors(layout)

    def captured(*values: Tensor) -> Any:
        given, of_batch = values[: len(tensors)], values[len(tensors) :]
        return function(layout_with(layout, names, of_batch), *given)

    rehearsed = None if rehearsal is None else (*rehearsal, *of_layout)
    return graphs.run((options, names, _constants(layout)), captured, (*tensors, *of_layout), rehearsed)


def layout_tensors(layout: PackedLayout) -> tuple[tuple[str, ...], tuple[Tensor, ...]]:
    """All tensors that may differ between batches of the same shape, with names."""
    found = {name: value for name, value in sorted(vars(layout).items()) if isinstance(value, Tensor)}
    return tuple(found), tuple(found.values())


def layout_with(layout: PackedLayout, names: Sequence[str], tensors: Sequence[Tensor]) -> PackedLayout:
    """The layout of another batch of the same shape."""
    other = copy.copy(layout)
    for name, value in zip(names, tensors, strict=True):
        setattr(other, name, value)
    # The only thing that is neither a tensor nor a single number and depends on the batch: unknown now, so nothing is
    # left out.
    other.furthest_context = [layout.context_length] * layout.num_anchors
    return other


def _constants(layout: PackedLayout) -> tuple[tuple[str, int | None], ...]:
    """Everything else of a layout that shapes depend on."""
    return tuple((name, value) for name, value in sorted(vars(layout).items()) if isinstance(value, int | None))


def _state(network: nn.Module) -> int:
    """Where its weights are, and which adapters compute."""
    found: list[Any] = []
    for module in network.modules():
        held: Any = module
        found.extend(weight.data_ptr() for weight in module._parameters.values() if weight is not None)
        if hasattr(held, "adapter_layer_names"):
            found.append((tuple(held.active_adapters), held.disable_adapters))
    return hash(tuple(found))
