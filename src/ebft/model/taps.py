"""Which hidden states are tapped, a decoder that ends at the highest of them, and hooks that read them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ebft.model.backbone import decoder_config, decoder_layers


def resolve_taps(layers: Sequence[float | int], depth: int) -> tuple[int, ...]:
    """Indices into `hidden_states` (0 is the embeddings) for fractions of the depth or indices."""
    if not layers:
        raise ValueError("layers is empty; tap at least one")
    taps = []
    for layer in layers:
        if isinstance(layer, bool) or not isinstance(layer, (int, float)):
            raise ValueError(f"layers holds {layer!r}; use fractions of the depth (0.25) or layer numbers (8)")
        if isinstance(layer, float):
            if not 0 <= layer <= 1:
                raise ValueError(f"layers holds {layer}; a fraction of the depth lies between 0 and 1")
            taps.append(math.floor(layer * depth))
        else:
            if not 0 <= layer <= depth:
                raise ValueError(f"layers holds {layer} but the network has {depth} layers")
            taps.append(layer)
    return tuple(taps)


def cut_decoder(decoder: nn.Module, depth: int) -> nn.Module:
    """The decoder with only its first `depth` layers (at least one), sharing its weights."""
    name, layers = decoder_layers(decoder)
    depth = max(depth, 1)
    cut = copy.copy(decoder)
    cut._modules = {**decoder._modules, name: nn.ModuleList(list(layers)[:depth])}
    cut.config = copy.deepcopy(decoder.config)
    decoder_config(cut).num_hidden_layers = depth
    return cut


def random_like(decoder: nn.Module, seed: int) -> nn.Module:
    """The same shape with other weights. Only the device is taken over: `.to(dtype)` would round buffers as well."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fresh = type(decoder)(copy.deepcopy(decoder.config))
    return fresh.to(next(decoder.parameters()).device)


@contextmanager
def tapped_states(
    decoder: nn.Module, taps: Sequence[int], places: Sequence[Tensor]
) -> Iterator[dict[int, list[Tensor]]]:
    """Keep tokens [b, R, m] of the tapped hidden states, as [b, R, m, width], and nothing else.
    Tokens are numbered over all rows of the pass, one after the other."""
    layers = decoder_layers(decoder)[1]
    found: dict[int, list[Tensor]] = {}

    def keep(tap: int, hidden: Tensor) -> None:
        found[tap] = [hidden.flatten(0, 1)[tokens] for tokens in places]

    def before_first_layer(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        keep(0, args[0] if args else kwargs["hidden_states"])

    def after_layer(tap: int) -> Callable[[nn.Module, Any, Any], None]:
        return lambda _, __, output: keep(tap, output[0] if isinstance(output, tuple) else output)

    handles = []
    for tap in set(taps):
        if tap == 0:
            handles.append(layers[0].register_forward_pre_hook(before_first_layer, with_kwargs=True))
        else:
            handles.append(layers[tap - 1].register_forward_hook(after_layer(tap)))
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
