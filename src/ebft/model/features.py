"""Features: hidden states of a frozen network at the end of every completion, and of the truth.

phi(c:y) is the concatenation of the hidden states after the layers at 25 %, 50 % and 75 % of the depth, at the last
token, each scaled to unit length (paper, section on constructing the feature map). Nothing above the highest tapped
layer is kept or run: no upper layers, no final norm, no head. The truth's features are rows of the same pass, since
the context holds the truth.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from ebft.method import Backend, Normalize, Pooling
from ebft.method.layout import PackedLayout
from ebft.model.attention import PackedPass
from ebft.model.backbone import (
    adapter_parameters,
    copy_in_dtype,
    decoder_layers,
    decoder_of,
    evaluating,
    fitting_layout,
    input_embeddings,
    prepare_model,
    run_decoder,
    text_config,
)
from ebft.runtime.files import Json
from ebft.runtime.sharding import whole

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
            "copy": the model as it is now, copied up to the highest tap. The default: training does not change it.
            "shared": the model itself, no copy. For a model that is not being trained, such as another checkpoint.
            "adapter_off": the base model under a peft adapter, no copy; the adapter is off during the pass.
            "random": the model's shape with fresh random weights (an ablation of the paper), from `seed`.
            "average": starts as a copy; `update_average(model)` moves it towards the trained model.
        decay: of the moving average.
        dtype: of the copied weights; None keeps the model's.
        autocast: compute in this precision; None: in that of the weights.
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
        autocast: torch.dtype | None = None,
        backend: Backend = "auto",
    ) -> None:
        super().__init__()
        given, choices = (pooling, normalize, source), [get_args(kind) for kind in (Pooling, Normalize, Source)]
        if not (all(map(tuple.__contains__, choices, given)) and 0 <= decay < 1):
            raise ValueError(f"{given} must each be one of {choices}, and decay={decay} be in [0, 1)")
        base = prepare_model(model)
        decoder = decoder_of(base)
        self.taps = resolve_taps(layers, len(decoder_layers(decoder)[1]))
        self.pooling, self.normalize, self.source = pooling, normalize, source
        self.decay, self.autocast, self.backend = decay, autocast, backend
        if source == "random":
            trained = next(decoder.parameters())
            dtype = dtype or trained.dtype
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                decoder = type(decoder)(copy.deepcopy(decoder.config)).to(trained.device)
        if source == "average":
            dtype = dtype or torch.float32  # a bf16 weight would not move at such small steps
        network = cut_decoder(decoder, max(self.taps))
        if source in ("copy", "average", "random"):
            network = self.network = copy_in_dtype(network, dtype)[0].requires_grad_(False).eval()
        # Weights that belong to somebody else stay out of this module's parameters, hence the lists.
        self._network = [network]
        self._adapted: list[Any] = [model] if source == "adapter_off" else []

    @classmethod
    def from_pretrained(
        cls,
        path: str,
        like: nn.Module | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        model_kwargs: Json | None = None,
        **kwargs: Any,
    ) -> FeatureNetwork:
        """Features from another checkpoint, for instance a larger model of the same family.

        Token ids must mean the same in both: with `tokenizer` (the trained model's) the two vocabularies are
        compared token by token; without it, the vocabulary sizes of `like` and the checkpoint must be equal.
        """
        model: Any = AutoModelForCausalLM.from_pretrained(path, **(model_kwargs or {}))
        if tokenizer is not None:
            check_vocabulary(path, AutoTokenizer.from_pretrained(path), tokenizer)
        if like is not None:
            mine, theirs = (text_config(one).vocab_size for one in (model, like))
            if tokenizer is None and mine != theirs:
                what = f"{path} has a vocabulary of {mine}, the model one of {theirs}; they must be the same"
                raise ValueError(f"{what} (pass tokenizer= if only the padding of the embedding differs)")
            model = model.to(device=input_embeddings(like).device)
        features = cls(model, source="shared", **kwargs)
        # Nobody else holds this model: keep its lower layers here, so that `.to(device)` moves them.
        features.network = features.decoder.requires_grad_(False).eval()
        return features

    @property
    def decoder(self) -> nn.Module:
        """The layers that compute, wherever their weights belong."""
        return self._network[0]

    @property
    def width(self) -> int:
        """D, the length of a feature vector."""
        return len(self.taps) * text_config(self.decoder).hidden_size

    @torch.no_grad()
    def forward(
        self, packed_ids: Tensor, layout: PackedLayout, completion_lengths: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Features of packed sequences [b, S]: generated [b, B, n, D] and truth [b, B, D], float32.

        completion_lengths [b, B, n] ends completions at their end token: the last token is that one, and a mean
        stops there. Features of anchors that a row drops mean nothing.
        """
        return self.at_lengths(packed_ids, layout, [layout.horizon], completion_lengths)[0]

    @torch.no_grad()
    def at_lengths(
        self, packed_ids: Tensor, layout: PackedLayout, lengths: Sequence[int], completion_lengths: Tensor | None = None
    ) -> list[tuple[Tensor, Tensor]]:
        """`forward` for completions and truths cut after each of `lengths` tokens, all from one pass.

        A causal network's states at a token do not depend on what follows it, so cutting is choosing other rows.
        """
        network, b, B, n = self.decoder, len(packed_ids), layout.num_anchors, layout.samples
        layout = fitting_layout(network, layout, packed_ids)
        packed_pass = PackedPass(layout, self.backend, b)
        pooled_rows = [_pooled_rows(layout, b, completion_lengths, self.pooling, length) for length in lengths]
        places = [(packed_pass.numbers(slots), weights) for slots, weights in pooled_rows]
        adapter_off = self._adapted[0].disable_adapter() if self._adapted else nullcontext()
        precision = torch.autocast(packed_ids.device.type, self.autocast, enabled=self.autocast is not None)
        with evaluating(network), adapter_off, precision, tapped_states(network, self.taps, places) as tapped:
            run_decoder(network, packed_ids, layout.position_ids, packed_pass)

        found = []
        for pooled in zip(*(tapped[tap] for tap in self.taps), strict=True):
            if self.normalize == "per_layer":
                features = torch.cat([F.normalize(x, dim=-1) for x in pooled], -1)
            else:
                features = F.normalize(torch.cat(pooled, -1), dim=-1)
            found.append((features[:, : B * n].unflatten(1, (B, n)), features[:, B * n :]))
        return found

    @torch.no_grad()
    def update_average(self, model: nn.Module) -> None:
        """Move the weights towards the trained model's: w <- decay * w + (1 - decay) * model's."""
        assert self.source == "average", "every other network stays frozen"
        trained = cut_decoder(decoder_of(model), max(self.taps))
        for mine, other in zip(self.network.parameters(), trained.parameters(), strict=True):
            mine.lerp_(other.to(mine.dtype), 1 - self.decay)


def check_vocabulary(path: str, other: PreTrainedTokenizerBase, tokenizer: PreTrainedTokenizerBase) -> None:
    """Token ids must mean the same in a feature network, at `path` with a tokenizer of its own, and in the model."""
    if other.get_vocab() != tokenizer.get_vocab():
        tokens = f"{len(other)} and {len(tokenizer)} tokens"
        raise ValueError(f"the tokenizer of {path} differs from the model's ({tokens}); they must share a vocabulary")


def _pooled_rows(
    layout: PackedLayout, b: int, completion_lengths: Tensor | None, pooling: Pooling, longest: int
) -> tuple[Tensor, Tensor]:
    """Which slots each feature is pooled from [b, B*n + B, m], and weights to sum them with; only the first `longest`
    tokens of completions and truths count."""
    B, n, G, steps = layout.num_anchors, layout.samples, longest, torch.arange(longest, device=layout.device)
    if completion_lengths is None:
        completion_lengths = torch.full((b, B, n), G, device=layout.device)
    lengths = torch.cat([completion_lengths.flatten(1), layout.truth_lengths.expand(b, B).clamp(min=1)], 1).clamp(max=G)
    completions = layout.completion_slots[..., :G].expand(b, B, n, G).flatten(1, 2)
    truths = layout.anchors.expand(b, B)[..., None] + steps
    slots = torch.cat([completions, truths], 1)  # [b, B*n + B, G]
    last = lengths[..., None] - 1
    if pooling == "last":
        return slots.gather(2, last), torch.ones(1, 1, 1, 1, device=layout.device)
    inside = steps <= last
    return slots.gather(2, torch.minimum(steps, last)), (inside / lengths[..., None])[..., None]


# ---- taps ----------------------------------------------------------------------------------------------------------


def resolve_taps(layers: Sequence[float | int], depth: int) -> tuple[int, ...]:
    """Indices into `hidden_states` (0 is the embeddings) for fractions of the depth or indices."""
    taps = tuple(math.floor(layer * depth) if isinstance(layer, float) else layer for layer in layers)
    if not taps or not all(0 <= tap <= depth for tap in taps):
        raise ValueError(f"layers={list(layers)} must be shares (0.25, 1.0) or layer numbers up to {depth}")
    return taps


def cut_decoder(decoder: nn.Module, depth: int) -> nn.Module:
    """The decoder with only its first `depth` layers (at least one), sharing its weights."""
    name, layers = decoder_layers(decoder)
    depth = max(depth, 1)
    cut = copy.copy(decoder)
    cut._modules = {**decoder._modules, name: nn.ModuleList(list(layers)[:depth])}
    cut.config = copy.deepcopy(decoder.config)
    text_config(cut).num_hidden_layers = depth
    return cut


@contextmanager
def tapped_states(
    decoder: nn.Module, taps: Sequence[int], places: Sequence[tuple[Tensor, Tensor]]
) -> Iterator[dict[int, list[Tensor]]]:
    """Pool tokens [b, R, m] of the tapped hidden states with their weights, to [b, R, width], and keep nothing else.
    Tokens are numbered over all rows of the pass, one after the other."""
    layers = decoder_layers(decoder)[1]
    found: dict[int, list[Tensor]] = {}

    def keep(tap: int, _: nn.Module, args: tuple[Tensor, ...], kwargs: Json, output: Tensor | tuple[Tensor]) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        if tap == 0:  # the embeddings: what the first layer is given
            hidden = args[0] if args else kwargs["hidden_states"]
        flat = hidden.flatten(0, 1)
        found[tap] = [(flat[tokens].float() * weights).sum(-2) for tokens, weights in places]

    with ExitStack() as hooks:
        for tap in set(taps):
            hooks.enter_context(layers[max(tap - 1, 0)].register_forward_hook(partial(keep, tap), with_kwargs=True))
        yield found


# ---- telling networks apart by some of every weight, without reading gigabytes -------------------------------------


def weight_fingerprint(network: nn.Module) -> str:
    """The same for the same weights in any precision, sharded or not, with an adapter on top or without."""
    mark, adapter = hashlib.sha256(), adapter_parameters(network)
    for name, parameter in network.named_parameters():
        if id(parameter) in adapter:  # off when features are computed
            continue
        values = whole(parameter.detach()).flatten()
        # About 64 numbers, in bf16: one checkpoint loaded in two precisions has one mark.
        some = values[:: max(1, len(values) // 64)].bfloat16().float().cpu().numpy()
        mark.update(name.replace(".base_layer", "").replace(".original_module", "").encode() + some.tobytes())
    return mark.hexdigest()[:16]


def feature_space(features: FeatureNetwork, name: str) -> Json:
    """What says whether two evaluations looked at their models in the same space."""
    return {
        "model": name,
        "taps": list(features.taps),
        "pooling": features.pooling,
        "normalize": features.normalize,
        "weights": weight_fingerprint(features.decoder),
    }
