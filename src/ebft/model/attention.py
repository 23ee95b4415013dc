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
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from ebft.method import Backend
from ebft.method.layout import PackedLayout
from ebft.method.rewards import token_groups
from ebft.model import flex
from ebft.model.flex import KV, ScoreRule

ATTENTION_NAME = "ebft"

# Of a layer that leaves its sliding window to the mask. A number, not an object of its own, for compiled layers.
_NOT_PASSED = -1

# Tokens of completions that the sdpa backend looks at in one call.
PART = 64
T = TypeVar("T")
_RECOMPUTED: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False, "determinism_check": "none"}

# Products and scores of a rollout's step alive at once in the sdpa backend, in elements: few enough for a CPU's cache.
CHUNK_SCORES = {"cpu": 2**20, "cuda": 2**26}


def avoid_cudnn_attention() -> None:
    """Of torch's kernels for attention, all but cuDNN's, in this process: it is reported to return gradients of NaN on
    Hopper (github.com/pytorch/pytorch/issues/196678) and wrong tokens on Blackwell (issue 193893), and it makes a plan
    for every length it meets, which takes longer than a step of a small model."""
    torch.backends.cuda.enable_cudnn_sdp(False)


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


class Pass:
    """Who sees whom while the layers run: of `PackedPass` or of `CachedPass`."""

    computed: Computed | None = None  # None: all tokens are

    def __init__(self, layout: PackedLayout, backend: Backend) -> None:
        self.layout = layout
        # FlexAttention's kernels are for CUDA; elsewhere the same numbers come from sdpa.
        self.on_flex = backend != "sdpa" and layout.device.type == "cuda"
        self._made: dict[object, object] = {}  # masks, built once per window size, shared by the layers

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, rule: ScoreRule) -> Tensor:
        """Queries [b, heads, N, d], keys and values [b, kv_heads, N, d] -> [b, heads, N, d]; where only some tokens are
        computed, [1, heads, R, d] of those."""
        attend = partial(self._attend, layer, rule)
        return attend(q, k, v) if self.computed is None else self.computed.attend(attend, q, k, v)

    @abstractmethod
    def _attend(self, layer: int, rule: ScoreRule, q: Tensor, k: Tensor, v: Tensor) -> Tensor: ...

    def _once(self, make: Callable[..., T], *arguments: object) -> T:
        """make(layout, *arguments), for the first layer that asks."""
        if (make, *arguments) not in self._made:
            self._made[make, *arguments] = make(self.layout, *arguments)
        return cast(T, self._made[make, *arguments])

    def _uses_flex(self, q: Tensor) -> bool:
        return self.on_flex and q.shape[-1] >= flex.SMALLEST_HEAD

    def _attend_by_flex(self, q: Tensor, k: Tensor, v: Tensor, rule: ScoreRule) -> Tensor:
        """Among the first tokens of the packed sequence: all of them, or the context."""
        mask = self._once(flex.mask_of_first, q.shape[2], rule.window, flex.block_size(q))
        return flex.attend(q, k, v, mask, rule, self.layout.context_length)

    def _attend_context(self, q: Tensor, k: Tensor, v: Tensor, rule: ScoreRule) -> Tensor:
        """The sdpa backend among the context tokens."""
        window = rule.window if rule.window is not None and rule.window < self.layout.context_length else None
        plain = window is None and rule.softcap is None and self.layout.packed_documents is None
        return _attend_by_torch(q, k, v, None if plain else self._once(_context_mask, window), rule)


class PackedPass(Pass):
    """The whole packed sequence in one forward pass, with gradients (training, features)."""

    def __init__(self, layout: PackedLayout, backend: Backend, rows: int | None = None) -> None:
        """rows: of the batch, if places without a token may be left out. None: everything is computed."""
        super().__init__(layout, backend)
        if rows is not None and layout.device.type == "cpu" and not bool(layout.has_token.all()):
            self.computed = Computed.where(layout.has_token.expand(rows, -1))

    def numbers(self, slots: Tensor) -> Tensor:
        """Where slots [b, ...] of the packed sequences stand among the tokens that are computed, row after row."""
        rows = torch.arange(len(slots), device=slots.device).view(-1, *[1] * (slots.dim() - 1))
        places = rows * self.layout.packed_length + slots
        return places if self.computed is None else self.computed.standing[places]

    def _attend(self, layer: int, rule: ScoreRule, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self._uses_flex(q):
            return self._attend_by_flex(q, k, v, rule)
        T, parts = self.layout.context_length, self._once(_parts, rule.window)
        # Split first: the gradient of a slice is as large as what it is cut from.
        q_context, *q_parts = q.split([T, *(part.mask.shape[2] for part in parts)], 2)
        (k_context, k_own), (v_context, v_own) = (x.split([T, x.shape[2] - T], 2) for x in (k, v))
        attended = [self._attend_context(q_context, k_context, v_context, rule)]
        for part, queries in zip(parts, q_parts, strict=True):
            keys = torch.cat([k_context[:, :, : part.context], k_own[:, :, part.own]], 2)
            values = torch.cat([v_context[:, :, : part.context], v_own[:, :, part.own]], 2)
            attended.append(_attend_by_torch(queries, keys, values, part.mask, rule))
        return torch.cat(attended, 2)


class _Part(NamedTuple):
    """Consecutive tokens of completions, and what any of them looks at: context up to their anchors, and ancestors."""

    context: int  # how many leading context tokens
    own: slice  # of the completions' tokens, from the first ancestor on
    mask: Tensor  # bool [rows, 1, queries, keys]


def _parts(layout: PackedLayout, window: int | None) -> list[_Part]:
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
        parts.append(_Part(seen, own, mask))
    return parts


class CachedPass(Pass):
    """First the context, kept once, then token after token of all completions side by side (rollouts)."""

    def __init__(self, layout: PackedLayout, backend: Backend) -> None:
        super().__init__(layout, backend)
        self.step = -1  # -1: the context; g: token g of every completion
        self.context: dict[int, KV] = {}
        self.own: dict[int, KV] = {}

    def _attend(self, layer: int, rule: ScoreRule, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The N tokens are those of the context, later one of every completion: B*n."""
        layout, step = self.layout, self.step
        if step < 0:
            self.context[layer] = (k, v)
            return (self._attend_by_flex if self._uses_flex(q) else self._attend_context)(q, k, v, rule)
        if step == 0:
            shape = (*k.shape[:2], layout.num_anchors, layout.samples, layout.horizon - 1, k.shape[-1])
            self.own[layer] = (k.new_zeros(shape), v.new_zeros(*shape[:-1], v.shape[-1]))
        for held, new in zip(self.own[layer], (k, v), strict=True):
            held[..., step, :] = new.unflatten(2, held.shape[2:4])
        if self._uses_flex(q):
            # Without a window all steps of a completion see the same context.
            of_step = step if rule.window is not None else 0
            mask = self._once(flex.mask_of_step, of_step, rule.window, flex.block_size(q))
            at = torch.full((), step, device=q.device)
            return flex.attend_step(q, self.context[layer], self.own[layer], mask, rule, step, at)
        return _attend_step(q, self.context[layer], self.own[layer], layout, rule, step)


def _attend_step(q: Tensor, context: KV, own: KV, layout: PackedLayout, rule: ScoreRule, step: int) -> Tensor:
    """Token `step` of every completion [b, heads, B*n, d], over context [b, kv, T, d] and its own tokens
    [b, kv, B, n, G-1, d] up to itself -> [b, heads, B*n, d]. One softmax over both, for some anchors at a time."""
    (context_k, context_v), (own_k, own_v) = context, (held[..., : step + 1, :] for held in own)
    b, kv, B, n, _, _ = own_k.shape
    per_anchor = b * q.shape[1] * n * (context_k.shape[2] + own_k.shape[4] * own_k.shape[5])
    chunk = max(1, min(B, CHUNK_SCORES.get(q.device.type, CHUNK_SCORES["cpu"]) // per_anchor))
    full = torch.promote_types(q.dtype, torch.float32)
    grouped = q.unflatten(1, (kv, -1)).unflatten(3, (B, n))  # [b, kv, heads/kv, B, n, d]
    tokens, rows = torch.arange(layout.packed_length, device=q.device), layout.mask_rows[:, None, None]
    first_samples = tokens[layout.context_length + step :: n * layout.horizon]  # what they see, the others see as well
    outputs = []
    for start in range(0, B, chunk):
        anchors = slice(start, start + chunk)
        seen = max(layout.furthest_context[anchors])
        queries, keys = grouped[:, :, :, anchors], context_k[:, :, :seen]
        # All queries of a kv head share its keys: [b, kv, heads/kv, B, n, seen].
        on_context = _scores(rule, queries.flatten(2, 4) @ keys.transpose(-1, -2)).unflatten(2, queries.shape[2:5])
        sees = layout.allowed(rows, first_samples[anchors, None], tokens[:seen], rule.window)  # [rows, B, seen]
        on_context = on_context.masked_fill(~sees[:, None, None, :, None], float("-inf"))
        # Products of a completion's own few tokens written out: a small matrix product for each sample and head takes
        # longer (3 tokens: 10 times as long, 64 tokens: 1.5 times).
        k, v = (held[:, :, None, anchors] for held in (own_k, own_v))  # [b, kv, 1, B, n, h, d]
        on_own = _scores(rule, (queries[..., None, :].to(full) * k).sum(-1))
        if rule.window is not None:
            back = step - tokens[: step + 1]
            on_own = on_own.masked_fill(back >= rule.window, float("-inf"))
        weights = torch.cat([on_context, on_own], -1).softmax(-1).to(v.dtype)
        to_context, to_own = weights.split([seen, step + 1], -1)
        from_context = (to_context.flatten(2, 4) @ context_v[:, :, :seen]).unflatten(2, queries.shape[2:5])
        outputs.append(from_context + (to_own[..., None].to(full) * v).sum(-2).to(v.dtype))
    return torch.cat(outputs, 3).flatten(3, 4).flatten(1, 2)


def _context_mask(layout: PackedLayout, window: int | None) -> Tensor:
    """bool [rows, 1, T, T]"""
    tokens = torch.arange(layout.context_length, device=layout.device)
    return layout.allowed(layout.mask_rows[:, None, None], tokens[:, None], tokens, window)[:, None]


def _attend_by_torch(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, rule: ScoreRule) -> Tensor:
    """Torch's own kernels, where they can. Without a mask a token sees all before it."""
    if mask is None or rule.softcap is None:
        of_all, grouped = mask is None, q.shape[1] != k.shape[1]
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=of_all, scale=rule.scale, enable_gqa=grouped)
    # Scores are cheap to make again and large to keep.
    attend = partial(checkpoint, _attend_plainly, **_RECOMPUTED) if torch.is_grad_enabled() else _attend_plainly
    return attend(q, k, v, mask, rule)


def _scores(rule: ScoreRule, products: Tensor) -> Tensor:
    scores = products.to(torch.promote_types(products.dtype, torch.float32)) * rule.scale
    return rule.softcap * torch.tanh(scores / rule.softcap) if rule.softcap is not None else scores


def _attend_plainly(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, rule: ScoreRule, dropout: float = 0.0) -> Tensor:
    """Written out, for the soft-capped scores that torch's own attention lacks."""
    scores = _scores(rule, q.unflatten(1, (k.shape[1], -1)) @ k[:, :, None].transpose(-1, -2))
    # The lowest finite number, not minus infinity: a padding row that sees nothing must stay finite all the same.
    lowest = torch.finfo(scores.dtype).min
    mask = mask[:, :, None]
    scores = scores.masked_fill(~mask, lowest) if mask.dtype == torch.bool else scores + mask
    weights = F.dropout(scores.softmax(-1).to(v.dtype), dropout)
    return (weights @ v[:, :, None]).flatten(1, 2)


# ---- what transformers calls ---------------------------------------------------------------------------------------


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
    ebft_pass: Pass | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The function transformers calls in every layer. Returns [b, tokens, heads, d]."""
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    if ebft_pass is None:  # nothing to do with ebft: transformers' own sdpa, which only lacks the soft-cap
        if softcap is None:
            heads = (query, key, value)
            return sdpa_attention_forward(module, *heads, attention_mask, dropout=dropout, scaling=scale, **kwargs)
        if attention_mask is None:
            queries, keys = query.shape[2], key.shape[2]
            attention_mask = torch.ones(1, 1, queries, keys, dtype=torch.bool, device=query.device).tril(keys - queries)
        rule = ScoreRule(scale, None, softcap)
        return _attend_plainly(query, key, value, attention_mask, rule, dropout).transpose(1, 2), None
    # Attention sinks, as they are called there; plain calls lack them too. With dropout, other log-probs were sampled.
    given = {"dropout": dropout or None, "s_aux": kwargs.get("s_aux"), "position_bias": kwargs.get("position_bias")}
    if odd := [name for name, value in given.items() if value is not None]:
        raise ValueError(f"{type(module).__name__} gives attention {odd[0]!r}, which ebft does not support")
    return _attend(module, query, key, value, ScoreRule(scale, sliding_window, softcap), ebft_pass), None


@torch.compiler.disable  # who sees whom changes with every batch; FlexAttention is compiled on its own
def _attend(module: Any, query: Tensor, key: Tensor, value: Tensor, rule: ScoreRule, ebft_pass: Pass) -> Tensor:
    # Under autocast rotary embeddings leave queries and keys in float32 while values are in bf16.
    query, key = query.to(value.dtype), key.to(value.dtype)
    if rule.window == _NOT_PASSED:
        rule = rule._replace(window=_window_of_mask(module))
    return ebft_pass.attend(module.layer_idx, query, key, value, rule).transpose(1, 2)


def _window_of_mask(module: Any) -> int | None:
    """The window that the model builds into the mask of this layer (Qwen2-MoE, PhiMoE), or None. Only of models that
    build such masks at all: others may have the field in their configuration and not look at it."""
    config = getattr(module, "config", None)
    window = getattr(config, "sliding_window", None)
    if not window or not hasattr(sys.modules[type(module).__module__], "create_sliding_window_causal_mask"):
        return None
    layer_types = getattr(config, "layer_types", None)
    return window if layer_types is None or layer_types[module.layer_idx] == "sliding_attention" else None


AttentionInterface.register(ATTENTION_NAME, _attention_function)
AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)
