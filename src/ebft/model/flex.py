"""The `flex` backend: the mask rule as block masks for FlexAttention. CUDA only (no backward on a CPU).

FlexAttention skips empty blocks of the attention matrix and asks the rule only inside partial ones. Evaluating it for
every pair of tokens to find out would grow with the square of the packed length. Here a block of queries and a block of
keys are each described by the range of what the rule compares, and the ranges decide. They err on the safe side: a
block called partial may turn out empty, one called whole is whole.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from ebft.method.compiling import compiled
from ebft.method.layout import PackedLayout
from ebft.runtime.files import Json

KV = tuple[Tensor, Tensor]  # keys and values
Rule = Callable[[Tensor, Tensor, Tensor], Tensor]  # of a row, the place of a query, and a key: whether it is seen

# FlexAttention's own limit; narrower heads (toy models) go through the sdpa backend.
SMALLEST_HEAD = 16
# Own tokens of a completion that a rollout's step looks at with products written out.
_FEW = 8
# Not "AUTO": that takes a decoding kernel for fewer than 128 queries, which has no variant for most of our masks.
_KERNEL = {"BACKEND": "TRITON"}

# Tokens of a block, in masks and kernels. On Hopper torch's own choices are slower for these masks: 128 tokens of short
# completions look at much that is not theirs (Qwen2.5-1.5B on an H200, forward and backward: 0.19 + 0.54 ms a layer
# with blocks of 128, 0.14 + 0.46 with these).
_COARSE, _FINE = 128, 64
_SIZES = (
    *("SPARSE_Q_BLOCK_SIZE", "SPARSE_KV_BLOCK_SIZE", "fwd_BLOCK_M", "fwd_BLOCK_N"),
    *("bwd_BLOCK_M1", "bwd_BLOCK_N1", "bwd_BLOCK_M2", "bwd_BLOCK_N2"),
)
_STAGES = {64: (4, 3), 128: (3, 2)}  # loads that are under way, forward and backward, by the width of a head
# Torch checks a mask's blocks against its own choice for the kernels, although it takes ours then. So every mask says
# 128, and the kernels are told otherwise, by versions that are known to listen: 2.11 was tried, 2.13 read.
_LISTENING = ((2, 11), (2, 13))


class ScoreRule(NamedTuple):
    """Scale, sliding window and soft-cap of one layer."""

    scale: float
    window: int | None
    softcap: float | None


# ---- kernels -------------------------------------------------------------------------------------------------------


@cache
def _fine_stages(device: torch.device, dtype: torch.dtype, head: int) -> tuple[int, int] | None:
    hopper = dtype == torch.bfloat16 and torch.cuda.get_device_capability(device)[0] == 9
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    return _STAGES.get(head) if hopper and _LISTENING[0] <= version <= _LISTENING[1] else None


def block_size(q: Tensor) -> int:
    """Of the masks for such queries."""
    return _FINE if _fine_stages(q.device, q.dtype, q.shape[-1]) else _COARSE


def _attention(kind: str, q: Tensor, kv: KV, mask: BlockMask, rule: ScoreRule, **options: object) -> Tensor:
    """FlexAttention, compiled: `kind` of call by kind."""
    kernel: Json = _KERNEL
    if stages := _fine_stages(q.device, q.dtype, q.shape[-1]):
        fine = dict.fromkeys(_SIZES, _FINE) | {"num_warps": 4}
        kernel = _KERNEL | fine | {"fwd_num_stages": stages[0], "bwd_num_stages": stages[1]}
    options |= {"score_mod": _cap(rule.softcap), "block_mask": mask, "scale": rule.scale, "kernel_options": kernel}
    return compiled(_only_compiled, kind)(q, *kv, **options)


def _only_compiled(q: Tensor, k: Tensor, v: Tensor, repeat: bool = False, **kwargs: Any) -> Tensor:
    """repeat: give every query head keys and values of its own.

    Uncompiled, FlexAttention holds a score for every pair of packed tokens: that is an error, never a fallback.
    """
    if not torch.compiler.is_compiling():
        why = "its limit of recompilations is reached, or compiling is switched off"
        what = "and uncompiled it would take the square of the packed length"
        way_out = "use attention_backend=sdpa, or fewer different shapes in one process"
        raise RuntimeError(f"torch has stopped compiling FlexAttention ({why}), {what}; {way_out}")
    if repeat:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    return flex_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1], **kwargs)


@cache
def _cap(softcap: float | None) -> Callable[..., Tensor] | None:
    if softcap is None:
        return None

    def cap(score: Tensor, b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return softcap * torch.tanh(score / softcap)

    return cap


def attend(q: Tensor, k: Tensor, v: Tensor, mask: BlockMask, rule: ScoreRule, context_length: int) -> Tensor:
    if not torch.is_grad_enabled():
        return _attention("forward", q, (k, v), mask, rule, repeat=False)
    # The gradient of keys has one program per block of keys and key head, and the context's few blocks are nearly all
    # of the work. Giving every query head keys of its own makes more programs, for memory: on an H200 with 132
    # processors it takes 0.46 instead of 0.91 ms where there were 64 programs, but 0.23 instead of 0.21 where there
    # were 192.
    programs = k.shape[0] * k.shape[1] * -(-context_length // block_size(q))
    repeat = q.shape[1] != k.shape[1] and programs <= 0.75 * _processors(k.device)
    return _attention("training", q, (k, v), mask, rule, repeat=repeat)


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def attend_step(q: Tensor, context: KV, own: KV, mask: BlockMask, rule: ScoreRule, step: int, at: Tensor) -> Tensor:
    """One token of every completion, [b, heads, B*n, d]: the context by FlexAttention, its own few tokens by a small
    product, and the two merged by their log-sum-exps. What `own` [b, kv, B, n, h, d] holds beyond `step` is not looked
    at, but must be numbers. at: `step` on the device; as a number it would be compiled in."""
    from_context, aux = _attention("step", q, context, mask, rule, return_aux=AuxRequest(lse=True))
    # The first few own tokens, rounded up: one compiled kernel then serves many steps.
    shown = min(max(_FEW, 1 << step.bit_length()), own[0].shape[4])
    own_k, own_v = (held[..., :shown, :] for held in own)
    # Plain numbers: they are compiled in.
    return compiled(_merge_own)(q, from_context, aux.lse, own_k, own_v, at, rule.scale, rule.window, rule.softcap)


def _merge_own(
    q: Tensor,
    from_context: Tensor,
    context_lse: Tensor,
    own_k: Tensor,
    own_v: Tensor,
    step: Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    B, n, kv = own_k.shape[2], own_k.shape[3], own_k.shape[1]

    def by_sample(x: Tensor) -> Tensor:  # [b, heads, B*n, ...] -> [b, kv, heads/kv, B, n, ...]
        return x.unflatten(1, (kv, -1)).unflatten(3, (B, n))

    # Products written out become one kernel with what follows; for few keys a query nothing is faster. A sum of more
    # than 64 is compiled to a loop that takes three times as long, so a long one is a sum of sums.
    products = by_sample(q).float()[..., None, :] * own_k[:, :, None].float()
    scores = products.unflatten(-1, (-1, math.gcd(q.shape[-1], 64))).sum(-1).sum(-1) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    back = step - torch.arange(own_k.shape[-2], device=q.device)
    seen = back >= 0 if window is None else (back >= 0) & (back < window)
    scores = scores.masked_fill(~seen, float("-inf"))
    own_lse = scores.logsumexp(-1)
    weights = (scores - own_lse[..., None]).exp()
    if own_v.shape[-2] <= _FEW:
        from_own = (weights[..., None] * own_v[:, :, None].float()).sum(-2)
    else:  # the queries of a completion against its values: written out it takes twice as long
        by_completion = weights.to(own_v.dtype).movedim(2, 4)  # [b, kv, B, n, heads/kv, h]
        from_own = (by_completion @ own_v).movedim(4, 2).float()
    share = torch.sigmoid(by_sample(context_lse).float() - own_lse)[..., None]  # of the context in the joint softmax
    merged = share * by_sample(from_context).float() + (1 - share) * from_own
    return merged.to(q.dtype).flatten(3, 4).flatten(1, 2)


# ---- masks ---------------------------------------------------------------------------------------------------------


def mask_of_first(layout: PackedLayout, tokens: int, window: int | None, block: int) -> BlockMask:
    """Among the first tokens of the packed sequence."""
    layout = _compact(layout)

    def rule(row: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return layout.allowed(row, query, key, window)

    return _block_mask(layout, rule, torch.arange(tokens, device=layout.device), tokens, window, block)


def mask_of_step(layout: PackedLayout, step: int, window: int | None, block: int) -> BlockMask:
    """Between token `step` of every completion and the context: `layout.allowed` with less to look up per pair."""
    layout, T = _compact(layout), layout.context_length
    queries = torch.arange(T + step, layout.packed_length, layout.horizon, device=layout.device)
    documents, positions = layout.packed_documents, layout.row_positions
    visible, own_positions = (x[:, queries].contiguous() for x in (layout.visible_context, positions))
    own_documents = None if documents is None else documents[:, queries].contiguous()

    def rule(row: Tensor, query: Tensor, key: Tensor) -> Tensor:
        result = key < visible[row, query]
        if documents is not None and own_documents is not None:
            result = result & (own_documents[row, query] == documents[row, key])
        if window is not None:
            result = result & (own_positions[row, query] - positions[row, key] < window)
        return result

    # Most blocks of a long horizon are partial: their queries are a few samples of anchors far apart.
    return _block_mask(layout, rule, queries, T, window, block)


def _compact(layout: PackedLayout) -> PackedLayout:
    """The same rule on 32-bit integers: half the bytes to read in the middle of a kernel."""
    narrow = copy.copy(layout)
    for name in ("visible_context", "subtree_end", "packed_documents", "row_positions"):
        value = getattr(layout, name)
        setattr(narrow, name, None if value is None else value.to(torch.int32))
    return narrow


def _block_mask(
    layout: PackedLayout, rule: Rule, queries: Tensor, keys: int, window: int | None, block: int
) -> BlockMask:
    """The rule, on row, place in `queries` and key, between the packed tokens `queries` and the first `keys`."""
    alike = layout.rows_alike

    def mask(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return rule(b * 0 if alike else b, q, kv)

    partial, whole = classify_blocks(layout, queries, keys, window, block)
    listed = (*_listed(partial), *_listed(whole))
    return BlockMask.from_kv_blocks(*listed, BLOCK_SIZE=_COARSE, mask_mod=mask, seq_lengths=(queries.shape[0], keys))


def _listed(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks of keys every block of queries has, and their numbers first, as FlexAttention wants them."""
    order = torch.argsort(chosen.to(torch.uint8), dim=-1, descending=True, stable=True)
    return chosen.sum(-1, dtype=torch.int32)[:, None].contiguous(), order.to(torch.int32)[:, None].contiguous()


def classify_blocks(
    layout: PackedLayout, queries: Tensor, keys: int, window: int | None, size: int
) -> tuple[Tensor, Tensor]:
    """Which blocks of size x size, between the packed tokens `queries` [Q] and the first `keys`, at least T, are
    partial, and which are whole: bool [rows, blocks of queries, blocks of keys]."""
    T = layout.context_length
    rows = slice(0, 1) if layout.rows_alike else slice(None)

    def ranges(values: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Lowest and highest in every block of queries [rows, blocks, 1] and of keys [rows, 1, blocks]."""
        low_q, high_q = _range(values[:, queries], size)
        low_k, high_k = _range(values[:, :keys], size)
        return low_q[..., None], high_q[..., None], low_k[:, None], high_k[:, None]

    seen_low, seen_high, _, _ = ranges(layout.visible_context[rows])
    first_key = (torch.arange(-(-keys // size), device=layout.device) * size)[None, None]
    last_key = first_key + size - 1
    of_context = (first_key < T) & (first_key < seen_high)
    whole = (last_key < T) & (last_key < seen_low)

    # Among completions: ancestors of the query, k <= q < end[k]. Context tokens are nobody's, their end is 0.
    first_query, last_query = (x[..., None] for x in _range(queries[None], size))
    _, _, end_low, end_high = ranges(layout.subtree_end[rows])
    own = (first_key <= last_query) & (first_query < end_high)
    possible = of_context | own
    whole = whole | ((last_key <= first_query) & (last_query < end_low))

    if layout.packed_documents is not None:
        low_q, high_q, low_k, high_k = ranges(layout.packed_documents[rows])
        possible = possible & (low_q <= high_k) & (low_k <= high_q)
        whole = whole & (low_q == high_q) & (low_k == high_k) & (low_q == low_k)
    if window is not None:
        low_q, high_q, low_k, high_k = ranges(layout.row_positions[rows])
        possible = possible & (low_q - high_k < window)
        whole = whole & (high_q - low_k < window)
    # Blocks that stick out over the end are never whole: the kernel has to look at every entry.
    inside_q = torch.arange(1, -(-queries.shape[0] // size) + 1, device=layout.device) * size <= queries.shape[0]
    inside_k = last_key < keys
    whole = whole & inside_q[None, :, None] & inside_k & possible
    return possible & ~whole, whole


def _range(values: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Lowest and highest entry of every block of the last dimension, [rows, tokens] -> two of [rows, blocks]."""
    missing = -values.shape[-1] % size
    last = values[..., -1:].expand(*values.shape[:-1], missing)
    blocks = torch.cat([values, last], -1).unflatten(-1, (-1, size))
    return blocks.amin(-1), blocks.amax(-1)
