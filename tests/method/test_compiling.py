"""What compiled functions keep for their backward pass."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch._functorch.aot_autograd import aot_function
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.nn.functional import silu

from ebft.method.compiling import prepare_compiling


def operations(function: Callable[..., Tensor], *inputs: Tensor) -> list[set[str]]:
    """Of the forward and of the backward pass."""
    found = []

    def compiler(graph: torch.fx.GraphModule, example: object) -> torch.fx.GraphModule:
        found.append({str(node.target) for node in graph.graph.nodes})
        return graph

    prepare_compiling()
    compiled = aot_function(function, compiler, compiler, partition_fn=min_cut_rematerialization_partition)
    compiled(*inputs).sum().backward()
    return found


def test_activations_are_made_again() -> None:
    x, w = (torch.randn(8, 8, requires_grad=True) for _ in range(2))
    _, backward = operations(lambda x, w: silu(x @ w) @ w, x, w)
    assert "aten.silu.default" in backward


def test_attention_is_not_computed_again() -> None:
    """A running maximum stands for FlexAttention, which has no backward pass on a CPU: torch counts neither among the
    expensive operations, nor among the cheap ones."""
    forward, backward = operations(lambda x: torch.cummax(x, 0).values.sin(), torch.randn(8, 8, requires_grad=True))
    assert "aten.cummax.default" in forward
    assert "aten.cummax.default" not in backward
