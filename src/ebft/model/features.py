"""Features: hidden states of a frozen network at the end of every completion, and of the truth.

phi(c:y) is the concatenation of the hidden states after the layers at 25 %, 50 % and 75 % of the depth, at the last
token, each scaled to unit length (paper, section on constructing the feature map). Nothing above the highest tapped
layer is kept or run: no upper layers, no final norm, no head. The truth's features are rows of the same pass, since
the context holds the truth.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from ebft.method.layout import PackedLayout
from ebft.model.attention import Backend, PackedPass, resolve_backend
from ebft.model.backbone import (
    base_model,
    check_packed_ids,
    decoder_layers,
    decoder_of,
    embedding_size,
    evaluating,
    prepare_model,
    run_decoder,
)

Pooling = Literal["last", "mean"]
Normalize = Literal["per_layer", "joint"]
Source = Literal["copy", "shared", "adapter_off", "random", "average"]


class FeatureNetwork(nn.Module):
    """A frozen network that maps packed sequences to features.

    Args:
        model: a causal language model of transformers, with or without a peft adapter.
        layers: which hidden states to tap: fractions of the depth (0.25 taps `hidden_states[floor(L/4)]`) or whole
            numbers (0 the embeddings, i the output of layer i). A tap of the last layer is taken before the norm.
        pooling: "last" token of the completion, or the "mean" over its tokens.
        normalize: "per_layer" scales each layer's vector to unit length before concatenation; "joint" scales the
            concatenation once, as the released code does.
        source: where the weights come from.
            "copy": the model as it is now, copied up to the highest tap. The default: training goes on without it.
            "shared": the model itself, no copy. For a model that nobody trains, such as another checkpoint.
            "adapter_off": the base model under a peft adapter, no copy; the adapter is off during the pass.
            "random": the model's shape with fresh random weights (an ablation of the paper), from `seed`.
            "average": starts as a copy; `update_average(model)` moves it towards the trained model.
        decay: of the moving average.
        dtype: of the copied weights; None keeps the model's.
        backend: attention backend, "auto", "sdpa" or "flex".

    Another checkpoint is loaded by `FeatureNetwork.from_pretrained(path, like=model)`.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Sequence[float | int] = (0.25, 0.5, 0.75),
        pooling: Pooling = "last",
        normalize: Normalize = "per_layer",
        source: Source = "copy",
        decay: float = 0.999,
        seed: int = 0,
        dtype: torch.dtype | None = None,
        backend: Backend = "auto",
    ) -> None:
        super().__init__()
        for name, value, options in (
            ("pooling", pooling, Pooling), ("normalize", normalize, Normalize), ("source", source, Source)
        ):
            if value not in get_args(options):
                raise ValueError(f"{name}={value!r} is not one of {', '.join(get_args(options))}")
        if not 0 <= decay < 1:
            raise ValueError(f"decay={decay} must be in [0, 1)")
        base = prepare_model(model)
        decoder = decoder_of(base)
        _, all_layers = decoder_layers(decoder)
        self.taps = resolve_taps(layers, len(all_layers))
        self.pooling, self.normalize, self.source, self.decay, self.backend = (
            pooling, normalize, source, decay, backend
        )
        self.vocabulary_size = embedding_size(base)
        self._adapter: Any = None
        if source == "adapter_off":
            if not hasattr(model, "disable_adapter"):
                raise ValueError("source='adapter_off' needs a peft model; use source='copy' for a plain one")
            self._adapter = [model]  # in a list: the trained model is no part of this module's weights
        if source == "random":
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                decoder = type(decoder)(copy.deepcopy(decoder.config))
            decoder = decoder.to(next(base.parameters()).device, dtype or next(base.parameters()).dtype)
            prepare_attention(decoder)
        cut = cut_decoder(decoder, max(1, max(self.taps)))
        if source in ("copy", "average"):
            with nullcontext() if not hasattr(model, "disable_adapter") else merged_adapter(model):
                cut = copy.deepcopy(cut)
            cut = cut.to(dtype) if dtype is not None else cut
        if source in ("shared", "adapter_off"):
            self._decoder = [cut]
        else:
            self.decoder = cut.requires_grad_(False).eval()
            self._decoder = [self.decoder]
