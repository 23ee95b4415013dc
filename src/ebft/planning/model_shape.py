"""Sizes of a model, counted on torch's meta device: a config.json is enough, no weights are loaded."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from ebft.method.cross_entropy import rows_per_chunk
from ebft.method.head import Head
from ebft.model.backbone import decoder_config, decoder_layers, decoder_of
from ebft.model.taps import cut_decoder, resolve_taps


@dataclass(frozen=True)
class ModelShape:
    """All sizes are numbers of elements."""

    parameters: int
    layers: int
    layer: int  # parameters of the largest layer
    frozen: int  # parameters of the feature network: everything up to its highest tap
    in_linear: int  # parameters of the layers' matrices, which QLoRA keeps in 4 bits
    largest: int  # the largest parameter
    largest_linear: int  # the largest matrix of a layer
    factored: int  # rows + columns of all matrices, and all other parameters: what Adafactor keeps
    width: int
    queries: int  # width of all query heads together
    keys: int  # width of all key-value heads together
    feed_forward: int
    vocabulary: int
    tied: bool  # the head is the embedding

    @classmethod
    def of(cls, model: nn.Module, feature_taps: Sequence[float | int]) -> ModelShape:
        """Of a transformers model on any device."""
        decoder = decoder_of(model)
        config, layers = decoder_config(decoder), decoder_layers(decoder)[1]
        parameters = list(model.parameters())
        taps = resolve_taps(feature_taps, len(layers))
        linear = [m.weight.numel() for m in layers.modules() if isinstance(m, nn.Linear)]
        heads = config.num_attention_heads
        head_width = getattr(config, "head_dim", None) or config.hidden_size // heads
        head: Any = model.get_output_embeddings()  # type: ignore[operator]
        embeddings: Any = model.get_input_embeddings()  # type: ignore[operator]
        return cls(
            parameters=_count(parameters),
            layers=len(layers),
            layer=max(_count(layer.parameters()) for layer in layers),
            frozen=_count(cut_decoder(decoder, max(taps)).parameters()),
            in_linear=sum(linear),
            largest=max(p.numel() for p in parameters),
            largest_linear=max(linear, default=0),
            factored=sum(sum(p.shape[-2:]) if p.dim() >= 2 else p.numel() for p in parameters),
            width=config.hidden_size,
            queries=heads * head_width,
            keys=(getattr(config, "num_key_value_heads", None) or heads) * head_width,
            feed_forward=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
            vocabulary=head.weight.shape[0],
            tied=head.weight is embeddings.weight,
        )

    @property
    def outside_layers(self) -> int:
        """Parameters of embeddings, head and norms."""
        return self.parameters - self.layers * self.layer

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


def _count(parameters: Iterable[nn.Parameter]) -> int:
    return sum(p.numel() for p in parameters)
