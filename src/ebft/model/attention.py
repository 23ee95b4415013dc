"""Attention over packed sequences, by two backends of the one mask rule in method/layout.py.

A transformers model whose attention implementation is set to "ebft" calls `_attention_function` in every layer.
With an `ebft_pass` among the keyword arguments of the model's call, the pass decides who sees whom; without one,
the layer does plain causal attention, so the model keeps working for all other callers.

Backends: `sdpa` runs anywhere: torch's own attention for the context, then for some tokens of completions at a time
over what those look at, which never forms the S x S mask and leaves out the context behind their anchors. `flex`
(CUDA) hands the rule to FlexAttention as a block mask.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from ebft.method.choices import Backend
from ebft.method.layout import PackedLayout
from ebft.method.rewards import token_groups
from ebft.model import flex
from ebft.model.flex import ScoreRule

ATTENTION_NAME = "ebft"

# Of a layer that leaves its sliding window to the mask. A number, not an object of its own, for compiled layers.
_NOT_PASSED = -1

# Tokens of completions that the sdpa backend looks at in one call.
PART = 64
_RECOMPUTED: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False, "determinism_check": "none"}

# Products and scores of a rollout's step alive at once in the sdpa backend, in elements: few enough for a CPU's cache.
CHUNK_SCORES = {"cpu": 2**20, "cuda": 2**26}


def avoid_cudnn_attention() -> None:
    """Of torch's kernels for attention, all but cuDNN's, in this process: it is reported to return gradients of NaN on
    Hopper (github.com/pytorch/pytorch/issues/196678) and wrong tokens on Blackwell (issue 193893), and it makes a plan
    for every length it meets, which takes longer than a step of a small model."""
    torch.backends.cuda.enable_cudnn_sdp(False)


def resolve_backend(backend: Backend, device: torch.device) -> Backend:
    if backend == "auto":
        return "flex" if device.type == "cuda" else "sdpa"
    if backend not in ("sdpa", "flex"):
        raise ValueError(f"backend={backend!r} is not one of auto, sdpa, flex")
    if backend == "flex" and device.type != "cuda":
        raise ValueError(f"backend='flex' needs a CUDA device, the model is on {device.type}; use backend='sdpa'")
    return backend


# ---- which tokens of a pass are computed ---------------------------------------------------------------------------

ASK = None  # instead of a number of samples: as many as there are, which the host waits for


def rounded_up(size: int, largest: int) -> int:
    """To sixteenths of the largest, in whole blocks of 128."""
    step = -(-largest // (16 * 128)) * 128
    return -(-max(size, 1) // step) * step


def ask(counts: Sequence[Tensor]) -> list[list[int]]:
    """The device's numbers, for the host. It waits for them."""
    return torch.stack(list(counts)).tolist()


@dataclass(frozen=True)
class Computed:
    """R of the b x N tokens of a pass are computed: not those that nobody looks at, and of samples of a rollout that
    have drawn the same tokens so far, one for all. Layers see the R tokens in one row; attention sees all, row by row.

    How many there are has to be known on the host. On a CPU it is; a GPU is not asked at every step of a rollout.
    """

    chosen: Tensor  # [R], places among all tokens, row after row
    standing: Tensor  # [b*N], which of the chosen stands for each token
    rows: int  # b

    @classmethod
    def where(cls, has_token: Tensor) -> Computed:
        """The places that have one, bool [b, N]. What the first of them says in place of the others means nothing."""
        places = has_token.flatten().clone()
        places[:1] = True  # somebody must be: rows that only fill up a process's part hold nothing
        return cls(places.nonzero()[:, 0], (places.cumsum(0) - 1) * places, len(has_token))

    @classmethod
    def of_samples(cls, begun: Tensor, kept: Tensor, size: int | None = ASK) -> tuple[Computed | None, Tensor]:
        """One sample for all that have drawn the same tokens so far, [b, B, n, g], at anchors that their row keeps,
        bool [b, B].

        size: R. Where fewer lead, others fill up; where more do, what is computed for the last is wrong.
        Returns None where all samples are computed, and how many lead.
        """
        first = token_groups(begun)
        b, B, n = first.shape
        leads = (first == torch.arange(n, device=first.device)) & kept[..., None]
        # Somebody must; samples of dropped anchors follow whoever came last. (A slice is filled on the device. A single
        # element would be copied from the host.)
        leads[:1, :1, :1] = True
        count = leads.sum()
        if size is ASK:
            size = int(count) if not begun.is_cuda else rounded_up(int(count), leads.numel())
        if size >= leads.numel() and begun.is_cuda:
            return None, count
        number = leads.flatten().cumsum(0) - 1
        leader_of = torch.arange(b * B, device=first.device).view(b, B, 1) * n + first
        in_order = leads.flatten().to(torch.uint8).sort(descending=True, stable=True).indices
        return cls(in_order[:size], number[leader_of.flatten()].clamp(max=size - 1), b), count

    def pick(self, per_token: Tensor) -> Tensor:
        """[b, N, ...] of all tokens -> [1, R, ...] of the chosen."""
        return per_token.flatten(0, 1).index_select(0, self.chosen)[None]

    def spread(self, per_chosen: Tensor) -> Tensor:
        """[1, R, ...] of the chosen -> [b, N, ...] of all tokens."""
        return per_chosen[0].index_select(0, self.standing).unflatten(0, (self.rows, -1))

    def attend(self, attend: Callable[[Tensor, Tensor, Tensor], Tensor], *heads: Tensor) -> Tensor:
        """Attention among all tokens, [b, heads, N, d], for queries, keys and values of the chosen [1, heads, R, d]."""
        q, k, v = (self.spread(x.transpose(1, 2)).transpose(1, 2) for x in heads)
        return self.pick(attend(q, k, v).transpose(1, 2)).transpose(1, 2)


# ---- passes --------------------------------------------------------------------------------------------------------


class _Pass:
    computed: Computed | None = None  # None: all tokens are

    def __init__(self, layout: PackedLayout, backend: Backend) -> None:
        self.layout, self.backend = layout, backend
        self.masks: dict[Any, Any] = {}  # built once per window size, shared by the layers

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, rule: ScoreRule) -> Tensor:
        """Queries [b, heads, N, d], keys and values [b, kv_heads, N, d] -> [b, heads, N, d]; where only some tokens are
        computed, [1, heads, R, d] of those."""
        attend = partial(self._attend, layer, rule)
        return attend(q, k, v) if self.computed is None else self.computed.attend(attend, q, k, v)

    def _attend(self, layer: int, rule: ScoreRule, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        raise NotImplementedError

    def _use_flex(self, q: Tensor) -> bool:
        return self.backend == "flex" and q.shape[-1] >= flex.SMALLEST_HEAD

    def _mask(self, key: Any, build: Callable[..., Any], *arguments: Any) -> Any:
        if key not in self.masks:
            self.masks[key] = build(self.layout, *arguments)
        return self.masks[key]

    def _flex_mask(self, name: str, build: Callable[..., Any], q: Tensor, window: int | None, *arguments: Any) -> Any:
        block = flex.block_size(q)
        return self._mask((name, window, block, *arguments), build, window, block, *arguments)

    def _attend_context(self, q: Tensor, k: Tensor, v: Tensor, rule: ScoreRule) -> Tensor:
        """The sdpa backend among the context tokens: torch's own kernels, where they can."""
        layout, T = self.layout, self.layout.context_length
        grouped = q.shape[1] != k.shape[1]
        window = rule.window if rule.window is not None and rule.window < T else None
        if window is None and not layout.has_documents and rule.softcap is None:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=rule.scale, enable_gqa=grouped)
        mask = self._mask(("dense", window), _dense_context_mask, window)
        if rule.softcap is None:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=rule.scale, enable_gqa=grouped)
        return _attend_plainly(q, k, v, mask, rule)


class PackedPass(_Pass):
    """The whole packed sequence in one forward pass, with gradients (training, features)."""

    def __init__(self, layout: PackedLayout, backend: Backend, rows: int | None = None) -> None:
        """rows: of the batch, if places without a token may be left out. None: everything is computed."""
        super().__init__(layout, backend)
        if rows is not None and layout.device.type == "cpu" and not bool(layout.has_token.all()):
            self.computed = Computed.where(layout.has_token.expand(rows, -1))

    def run(self, decoder: Callable[[Tensor, Tensor], Tensor], packed_ids: Tensor) -> Tensor:
        """decoder(ids, positions), both [b, tokens], over the tokens that are computed."""
        positions = self.layout.position_ids.expand(packed_ids.shape)
        if self.computed is None:
            return decoder(packed_ids, positions)
        return decoder(self.computed.pick(packed_ids), self.computed.pick(positions))

    def numbers(self, slots: Tensor) -> Tensor:
        """Where slots [b, ...] of the packed sequences stand among the tokens that are computed, row after row."""
        rows = torch.arange(len(slots), device=slots.device).view(-1, *[1] * (slots.dim() - 1))
        places = rows * self.layout.packed_length + slots
        return places if self.computed is None else self.computed.standing[places]

    def _attend(self, layer: int, rule: ScoreRule, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        layout, T = self.layout, self.layout.context_length
        if self._use_flex(q):
            mask = self._flex_mask("packed", flex.packed_mask, q, rule.window)
            return flex.attend(q, k, v, mask, rule, layout.context_length)
        parts: list[Part] = self._mask(("parts", rule.window), parts_of, rule.window)
        # Split first: the gradient of a slice is as large as what it is cut from.
        q_context, *q_parts = q.split([T, *(part.length for part in parts)], 2)
        (k_context, k_own), (v_context, v_own) = (x.split([T, x.shape[2] - T], 2) for x in (k, v))
        attended = [self._attend_context(q_context, k_context, v_context, rule)]
        for part, queries in zip(parts, q_parts, strict=True):
            keys, values = part.seen(k_context, k_own), part.seen(v_context, v_own)
            attended.append(self._attend_part(part, queries, keys, values, rule))
        return torch.cat(attended, 2)

    def _attend_part(self, part: Part, q: Tensor, k: Tensor, v: Tensor, rule: ScoreRule) -> Tensor:
        """Some tokens of completions over what they look at: the context up to their anchors, and their ancestors."""
        if rule.softcap is None:
            grouped = q.shape[1] != k.shape[1]
            return F.scaled_dot_product_attention(q, k, v, attn_mask=part.mask, scale=rule.scale, enable_gqa=grouped)
        # Scores are cheap to make again and large to keep.
        attend = partial(checkpoint, _attend_plainly, **_RECOMPUTED) if torch.is_grad_enabled() else _attend_plainly
        return attend(q, k, v, part.mask, rule)


class CachedPass(_Pass):
    """First the context, kept once, then token after token of all completions side by side (rollouts)."""

    def __init__(self, layout: PackedLayout, backend: Backend) -> None:
        super().__init__(layout, backend)
        self.step = -1  # -1: the context; g: token g of every completion
        self.context: dict[int, tuple[Tensor, Tensor]] = {}
        self.own: dict[int, tuple[Tensor, Tensor]] = {}

    def _attend(self, layer: int, rule: ScoreRule, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The N tokens are those of the context, later one of every completion: B*n."""
        layout = self.layout
        if self.step < 0:
            self.context[layer] = (k, v)
            if self._use_flex(q):
                mask = self._flex_mask("context", flex.context_mask, q, rule.window)
                return flex.attend(q, k, v, mask, rule, layout.context_length)
            return self._attend_context(q, k, v, rule)

        if self.step == 0:
            shape = (*k.shape[:2], layout.num_anchors, layout.samples, layout.horizon - 1, k.shape[-1])
            self.own[layer] = (k.new_zeros(shape), v.new_zeros(*shape[:-1], v.shape[-1]))
        own_k, own_v = self.own[layer]
        at = (slice(None),) * 4 + (self.step,)
        own_k[at] = k.unflatten(2, own_k.shape[2:4])
        own_v[at] = v.unflatten(2, own_v.shape[2:4])
        context_k, context_v = self.context[layer]
        if self._use_flex(q):
            # Without a window all steps of a completion see the same context.
            step = self.step if rule.window is not None else 0
            mask = self._flex_mask("step", flex.step_mask, q, rule.window, step)
            at = self._mask(("at", self.step), lambda layout: torch.full((), self.step, device=layout.device))
            return flex.attend_step(q, context_k, context_v, own_k, own_v, mask, rule, self.step, at)
        q = q.unflatten(2, (layout.num_anchors, layout.samples, 1))
        own_k, own_v = own_k[..., : self.step + 1, :], own_v[..., : self.step + 1, :]
        return attend_completions(q, context_k, context_v, own_k, own_v, layout, rule, self.step).flatten(2, 4)


@dataclass(frozen=True)
class Part:
    """Consecutive tokens of completions, and what any of them looks at."""

    length: int
    context: int  # how many leading context tokens
    own: slice  # of the completions' tokens, from the first ancestor on
    mask: Tensor  # bool [rows, 1, queries, keys]

    def seen(self, of_context: Tensor, of_completions: Tensor) -> Tensor:
        return torch.cat([of_context[:, :, : self.context], of_completions[:, :, self.own]], 2)


def parts_of(layout: PackedLayout, window: int | None) -> list[Part]:
    T, S = layout.context_length, layout.packed_length
    tokens = torch.arange(S, device=layout.device)
    rows = layout.mask_rows[:, None, None]
    parts = []
    for start in range(T, S, PART):
        queries = slice(start, min(start + PART, S))
        seen = int(layout.visible_context[:, queries].max())
        # A token before the first query that ends after it is its ancestor.
        ancestors = (layout.subtree_end[:, T:start] > start).any(0).nonzero()
        own = slice(int(ancestors[0]) if len(ancestors) else start - T, queries.stop - T)
        keys = torch.cat([tokens[:seen], tokens[T:][own]])
        mask = layout.allowed(rows, tokens[queries, None], keys, window)[:, None]
        parts.append(Part(queries.stop - start, seen, own, mask))
    return parts


def attend_completions(
    q: Tensor,
    context_k: Tensor,
    context_v: Tensor,
    own_k: Tensor,
    own_v: Tensor,
    layout: PackedLayout,
    rule: ScoreRule,
    first_step: int = 0,
) -> Tensor:
    """Queries [b, heads, B, n, g, d], steps first_step.. of their completions, over context [b, kv, T, d] and
    their own tokens [b, kv, B, n, h, d] -> [b, heads, B, n, g, d]. One softmax over both."""
    b, heads, B, n, steps, _ = q.shape
    per_anchor = b * heads * n * steps * (context_k.shape[2] + own_k.shape[4] * own_k.shape[5])
    budget = CHUNK_SCORES.get(q.device.type, CHUNK_SCORES["cpu"])
    chunk = max(1, min(B, budget // per_anchor))
    grouped = q.unflatten(1, (context_k.shape[1], -1))  # [b, kv, heads/kv, B, n, g, d]
    outputs = []
    for start in range(0, B, chunk):
        stop = min(start + chunk, B)
        seen = max(layout.furthest_context[start:stop])
        output = _attend_chunk(
            grouped[:, :, :, start:stop],
            context_k[:, :, :seen],
            context_v[:, :, :seen],
            own_k[:, :, start:stop],
            own_v[:, :, start:stop],
            _sees_context(layout, start, stop, seen, first_step, steps, rule.window),
            _sees_own(first_step, steps, own_k.shape[4], rule.window, q.device),
            rule,
        )
        outputs.append(output)
    return torch.cat(outputs, 3).flatten(1, 2)


def _attend_chunk(
    q: Tensor,
    context_k: Tensor,
    context_v: Tensor,
    own_k: Tensor,
    own_v: Tensor,
    sees_context: Tensor,
    sees_own: Tensor,
    rule: ScoreRule,
) -> Tensor:
    rows = q.shape[2:6]
    on_context = q.flatten(2, 5) @ context_k.transpose(-1, -2)  # all queries of a kv head share its keys
    on_context = rule.scores(on_context).unflatten(2, rows)  # [b, kv, heads/kv, B, n, g, seen]
    # Products of a completion's own few tokens written out: a small matrix product for each sample and head takes
    # longer (3 tokens: 10 times as long, 64 tokens: 1.5 times).
    full = torch.promote_types(q.dtype, torch.float32)
    own_k, own_v = own_k[:, :, None, :, :, None], own_v[:, :, None, :, :, None]  # [b, kv, 1, B, n, 1, h, d]
    on_own = rule.scores((q[..., None, :].to(full) * own_k).sum(-1))
    on_context = on_context.masked_fill(~sees_context, float("-inf"))
    on_own = on_own.masked_fill(~sees_own, float("-inf"))
    weights = torch.cat([on_context, on_own], -1).softmax(-1).to(own_v.dtype)
    to_context, to_own = weights.split([context_k.shape[2], own_k.shape[-2]], -1)
    from_context = (to_context.flatten(2, 5) @ context_v).unflatten(2, rows)
    return from_context + (to_own[..., None].to(full) * own_v).sum(-2).to(own_v.dtype)


def _sees_context(
    layout: PackedLayout, start: int, stop: int, seen: int, first_step: int, steps: int, window: int | None
) -> Tensor:
    """The rule between completions of anchors start..stop and the first `seen` context tokens, shaped to broadcast
    over [b, kv, heads/kv, B, n, g, seen]. Samples of an anchor see the same; without a window so do its steps."""
    T, G, n = layout.context_length, layout.horizon, layout.samples
    last = first_step + (steps if window is not None else 1)
    queries = T + torch.arange(start, stop, device=layout.device)[:, None] * (n * G)
    queries = queries + torch.arange(first_step, last, device=layout.device)  # sample 0 of each anchor: [B, g]
    keys = torch.arange(seen, device=layout.device)
    rows = layout.mask_rows[:, None, None, None]
    allowed = layout.allowed(rows, queries[..., None], keys, window)  # [rows, B, g, seen]
    return allowed[:, None, None, :, None]


def _sees_own(first_step: int, steps: int, keys: int, window: int | None, device: torch.device) -> Tensor:
    """Causal within a completion, [g, h]: the rule of layout.allowed for two tokens of one completion."""
    queries = torch.arange(first_step, first_step + steps, device=device)[:, None]
    back = queries - torch.arange(keys, device=device)
    return (back >= 0) & (back < window) if window is not None else back >= 0


def _dense_context_mask(layout: PackedLayout, window: int | None) -> Tensor:
    """bool [rows, 1, T, T]"""
    tokens = torch.arange(layout.context_length, device=layout.device)
    return layout.allowed(layout.mask_rows[:, None, None], tokens[:, None], tokens, window)[:, None]


def _attend_plainly(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, rule: ScoreRule, dropout: float = 0.0) -> Tensor:
    """Written out, for the soft-capped scores that torch's own attention lacks."""
    scores = rule.scores(q.unflatten(1, (k.shape[1], -1)) @ k[:, :, None].transpose(-1, -2))
    # The lowest finite number, not minus infinity: a padding row that sees nothing must stay finite all the same.
    lowest = torch.finfo(scores.dtype).min
    mask = mask[:, :, None]
    scores = scores.masked_fill(~mask, lowest) if mask.dtype == torch.bool else scores + mask
    weights = F.dropout(scores.softmax(-1).to(v.dtype), dropout)
    return (weights @ v[:, :, None]).flatten(1, 2)


def _attention_function(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = _NOT_PASSED,
    softcap: float | None = None,
    ebft_pass: PackedPass | CachedPass | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The function transformers calls in every layer. Returns [b, tokens, heads, d]."""
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    if ebft_pass is None:
        return _plain_attention(module, query, key, value, attention_mask, scale, dropout, softcap, kwargs)
    if dropout:
        raise ValueError(
            f"attention dropout of {dropout} is on: the policy gradient needs the log-probs that were sampled from; "
            "set the model's dropouts to 0"
        )
    if kwargs.get("s_aux") is not None:
        raise ValueError(f"{type(module).__name__} uses attention sinks, which ebft does not support")
    if kwargs.get("position_bias") is not None:
        raise ValueError(f"{type(module).__name__} adds a position bias to attention, which ebft does not support")
    return _attend(module, query, key, value, ScoreRule(scale, sliding_window, softcap), ebft_pass), None


@torch.compiler.disable  # who sees whom changes with every batch; FlexAttention is compiled on its own
def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, rule: ScoreRule, ebft_pass: PackedPass | CachedPass
) -> Tensor:
    # Under autocast rotary embeddings leave queries and keys in float32 while values are in bf16.
    query, key = query.to(value.dtype), key.to(value.dtype)
    if rule.window == _NOT_PASSED:
        rule = replace(rule, window=_window_of_mask(module))
    return ebft_pass.attend(_layer_index(module), query, key, value, rule).transpose(1, 2)


def _window_of_mask(module: nn.Module) -> int | None:
    """The window that the model builds into the mask of this layer (Qwen2-MoE, PhiMoE), or None.

    Only models that build such masks at all: others may have the field in their configuration and not look at it.
    """
    config: Any = getattr(module, "config", None)
    window = getattr(config, "sliding_window", None)
    if not window or not hasattr(sys.modules[type(module).__module__], "create_sliding_window_causal_mask"):
        return None
    layer_types = getattr(config, "layer_types", None)
    return window if layer_types is None or layer_types[_layer_index(module)] == "sliding_attention" else None


def _layer_index(module: nn.Module) -> int:
    index = getattr(module, "layer_idx", None)
    if not isinstance(index, int):
        raise ValueError(f"{type(module).__name__} has no layer index; ebft cannot keep its keys and values apart")
    return index


def _plain_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scale: float,
    dropout: float,
    softcap: float | None,
    kwargs: dict[str, Any],
) -> tuple[Tensor, None]:
    """Calls that have nothing to do with ebft: transformers' own sdpa, which only lacks the soft-cap."""
    if softcap is None:
        return sdpa_attention_forward(module, query, key, value, mask, dropout=dropout, scaling=scale, **kwargs)
    if mask is None:
        queries, keys = query.shape[2], key.shape[2]
        mask = torch.ones(1, 1, queries, keys, dtype=torch.bool, device=query.device).tril(keys - queries)
    return _attend_plainly(query, key, value, mask, ScoreRule(scale, None, softcap), dropout).transpose(1, 2), None


AttentionInterface.register(ATTENTION_NAME, _attention_function)
AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)
