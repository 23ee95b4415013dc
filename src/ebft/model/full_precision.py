"""A model in float32 for a moment, whatever its weights are kept in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

_NARROW = (torch.bfloat16, torch.float16)
_WIDE = (torch.float32, torch.float64)


@contextmanager
def in_float32(model: nn.Module, layers: Iterable[nn.Module]) -> Iterator[None]:
    """Inside, the model computes in float32, for calls without gradients. After, its weights are the same tensors.

    Copies in float32 exist of one layer at a time, while it runs, and of what is outside of the layers. A model whose
    weights are quantised, or are elsewhere and come when they are needed, stays as it is.
    """
    device = next(model.parameters()).device
    kept: dict[int, tuple[Tensor, Tensor]] = {}  # every tensor that is wide now, with its own data

    def widen(tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            if tensor.dtype in _NARROW:
                kept[id(tensor)] = (tensor, tensor.data)
                tensor.data = tensor.data.float()

    def restore(tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            if id(tensor) in kept:
                tensor.data = kept.pop(id(tensor))[1]

    layers = list(layers) if _can_be_widened(model) else []
    within = {id(tensor) for layer in layers for tensor in _tensors(layer)}
    hooks = []
    try:
        with torch.autocast(device.type, enabled=False):
            for layer in layers:
                hooks.append(layer.register_forward_pre_hook(lambda layer, _: widen(_tensors(layer))))
                hooks.append(layer.register_forward_hook(lambda layer, *_: restore(_tensors(layer)), always_call=True))
            if layers:
                widen(tensor for tensor in _tensors(model) if id(tensor) not in within)
            yield
    finally:
        for hook in hooks:
            hook.remove()
        restore([tensor for tensor, _ in kept.values()])


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _can_be_widened(model: Any) -> bool:
    known = all(parameter.dtype in _NARROW + _WIDE and not parameter.is_meta for parameter in model.parameters())
    return known and getattr(model, "hf_quantizer", None) is None
