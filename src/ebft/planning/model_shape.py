"""Sizes of a model, counted on torch's meta device: a config.json is enough, no weights are loaded."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from ebft.method.cross_entropy import Head, rows_per_chunk
from ebft.model.backbone import (
    base_model,
    check_supported,
    decoder_config,
    decoder_layers,
    decoder_of,
    expert_modules,
    experts_per_token,
    idle_parameters,
)
from ebft.model.features import cut_decoder, resolve_taps


@dataclass(frozen=True)
class FeedForward:
    """What a token meets in the feed-forward part of a layer."""

    inner: int  # width inside; of a mixture, that of the token's experts and of shared ones together
    experts: int = 0  # that the token's state is copied to; 0: no mixture


@dataclass(frozen=True)
class ModelShape:
    """All sizes are numbers of elements."""

    parameters: int
    active: int  # parameters without the experts that a token does not go to
    outside_layers: int  # parameters of embeddings, head and norms
    layer: int  # parameters of the largest layer
    frozen: int  # parameters of the feature network: everything up to its highest tap
    in_linear: int  # parameters of the layers' matrices, which QLoRA keeps in 4 bits
    largest: int  # the largest parameter
    largest_linear: int  # the largest matrix of a layer
    factored: int  # rows + columns of all matrices, every expert's too, and all other parameters: what Adafactor keeps
    width: int
    queries: int  # width of all query heads together
    keys: int  # width of all key heads together
    values: int  # the same of values
    feed_forward: tuple[FeedForward, ...]  # of every layer
    vocabulary: int
    tied: bool  # the head is the embedding

    @classmethod
    def of(cls, model: nn.Module, feature_taps: Sequence[float | int]) -> ModelShape:
        """Of a transformers model on any device."""
        check_supported(base_model(model))
        decoder = decoder_of(model)
        config, layers = decoder_config(decoder), decoder_layers(decoder)[1]
        parameters = list(model.parameters())
        taps = resolve_taps(feature_taps, len(layers))
        linear = [m.weight.numel() for m in layers.modules() if isinstance(m, nn.Linear)]
        heads = config.num_attention_heads
        kv_heads = getattr(config, "num_key_value_heads", None) or heads
        # DeepSeek's keys have a part with and one without positions, and its values a width of their own.
        head_width = getattr(config, "qk_head_dim", None) or getattr(config, "head_dim", None)
        head_width = head_width or config.hidden_size // heads
        head: Any = model.get_output_embeddings()  # type: ignore[operator]
        embeddings: Any = model.get_input_embeddings()  # type: ignore[operator]
        return cls(
            parameters=_count(parameters),
            active=_count(parameters) - idle_parameters(layers, config),
            outside_layers=_count(parameters) - _count(layers.parameters()),
            layer=max(_count(layer.parameters()) for layer in layers),
            frozen=_count(cut_decoder(decoder, max(taps)).parameters()),
            in_linear=sum(linear),
            largest=max(p.numel() for p in parameters),
            largest_linear=max(linear, default=0),
            factored=sum(_factored(p) for p in parameters),
            width=config.hidden_size,
            queries=heads * head_width,
            keys=kv_heads * head_width,
            values=kv_heads * (getattr(config, "v_head_dim", None) or head_width),
            feed_forward=tuple(_feed_forward(layer, config) for layer in layers),
            vocabulary=head.weight.shape[0],
            tied=head.weight is embeddings.weight,
        )

    @property
    def layers(self) -> int:
        return len(self.feed_forward)

    @property
    def mixtures(self) -> int:
        """Layers with experts."""
        return sum(layer.experts > 0 for layer in self.feed_forward)

    @property
    def gathered(self) -> int:
        """Parameters of a sharded model that are whole at one time: two layers (one prefetched) and all in no layer."""
        return self.outside_layers + 2 * self.layer

    def rows_of_logits(self, device: str) -> int:
        """How many rows of logits are made at once."""
        return rows_per_chunk(Head(torch.empty(self.vocabulary, self.width, device="meta")), torch.device(device))


def meta_model(config: Any) -> Any:
    """The model of a configuration, without weights."""
    config = copy.deepcopy(config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def _feed_forward(layer: nn.Module, config: Any) -> FeedForward:
    held = next(expert_modules(layer), None)
    if held is None:
        return FeedForward(getattr(config, "intermediate_size", None) or 4 * config.hidden_size)
    experts = experts_per_token(config, held.num_experts)
    # Stacked [experts, inner, width], or the two turned round; the matrix into the experts may be two in one.
    of_each = min(p.numel() for p in held.parameters(recurse=False) if p.dim() == 3) // held.num_experts
    # What else of a layer is neither attention nor router: a shared expert's matrices, three of inner x width.
    shared = sum(
        m.weight.numel() for name, m in layer.named_modules() if isinstance(m, nn.Linear) and "att" not in name
    )
    width = config.hidden_size
    return FeedForward(inner=experts * of_each // width + shared // (3 * width), experts=experts)


def _factored(parameter: nn.Parameter) -> int:
    if parameter.dim() < 2:
        return parameter.numel()
    rows, columns = parameter.shape[-2:]
    return parameter.numel() // (rows * columns) * (rows + columns)


def _count(parameters: Iterable[nn.Parameter]) -> int:
    return sum(p.numel() for p in parameters)
