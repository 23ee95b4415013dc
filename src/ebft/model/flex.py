"""The `flex` backend: the mask rule as block masks for FlexAttention. CUDA only (no backward on a CPU)."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from ebft.method.compiling import compiled
from ebft.method.layout import PackedLayout
from ebft.model.blocks import BLOCK, classify_blocks, ordered
from ebft.model.scores import ScoreRule

# FlexAttention's own limit; narrower heads (toy models) go through the sdpa backend.
SMALLEST_HEAD = 16
# Own tokens of a completion that a rollout's step looks at with products written out.
_FEW = 8
# Not "AUTO": that takes a decoding kernel for fewer than 128 queries, which has no variant for most of our masks.
_KERNEL = {"BACKEND": "TRITON"}


def _blocks(queries: int, keys: int, backward: tuple[int, int], warps: int, stages: int, backward_stages: int) -> Any:
    few, many = backward
    return {
        "fwd_BLOCK_M": queries,
        "fwd_BLOCK_N": keys,
        "fwd_num_warps": warps,
        "fwd_num_stages": stages,
        "bwd_BLOCK_M1": few,
        "bwd_BLOCK_N1": many,
        "bwd_BLOCK_M2": many,
        "bwd_BLOCK_N2": few,
        "bwd_num_warps": warps,
        "bwd_num_stages": backward_stages,
    }


# Blocks for heads of so many numbers on Hopper, where torch's own choice is slower for these masks. Updates on an H200:
# Qwen2.5-1.5B, 2 x 4608 tokens, forward 0.19 ms instead of 0.27, backward 0.72 instead of 0.78; Llama-3.2-1B, 2 x 7168
# tokens, 0.43 instead of 0.53 and 1.68 instead of 1.72; SmolLM2-135M, 16 x 1152 tokens, 0.20 instead of 0.24 and 0.38
# instead of 0.50.
_HOPPER = {
    64: _blocks(64, 64, (64, 64), warps=4, stages=3, backward_stages=2),
    128: _blocks(128, 64, (64, 128), warps=8, stages=3, backward_stages=3),
}


def _attention(kind: str, q: Tensor, *args: Any, **kwargs: Any) -> Any:
    """FlexAttention, compiled: `kind` of call by kind."""
    return compiled(_only_compiled, kind)(q, *args, **kwargs, kernel_options=_kernel(q.device, q.dtype, q.shape[-1]))


@cache
def _kernel(device: torch.device, dtype: torch.dtype, head: int) -> dict[str, Any]:
    tuned = dtype == torch.bfloat16 and torch.cuda.get_device_capability(device)[0] == 9
    return _KERNEL | (_HOPPER.get(head, {}) if tuned else {})


def _only_compiled(q: Tensor, k: Tensor, v: Tensor, repeat: bool = False, **kwargs: Any) -> Any:
    """repeat: give every query head keys and values of its own.

    Uncompiled, FlexAttention holds a score for every pair of packed tokens: that is an error, never a fallback.
    """
    if not torch.compiler.is_compiling():
        raise RuntimeError(
            "torch has stopped compiling FlexAttention (its limit of recompilations is reached, or compiling is "
            "switched off), and uncompiled it would take the square of the packed length; use "
            "attention_backend=sdpa, or fewer different shapes in one process"
        )
    if repeat:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    return flex_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1], **kwargs)


def packed_mask(layout: PackedLayout, window: int | None) -> BlockMask:
    return _leading_tokens_mask(layout, window, layout.packed_length)


def context_mask(layout: PackedLayout, window: int | None) -> BlockMask:
    return _leading_tokens_mask(layout, window, layout.context_length)


def step_mask(layout: PackedLayout, window: int | None, step: int) -> BlockMask:
    """Between token `step` of every completion and the context."""
    layout, T = _compact(layout), layout.context_length
    queries = torch.arange(T + step, layout.packed_length, layout.horizon, device=layout.device)
    # Most blocks of a long horizon are partial: 128 queries are a few samples of anchors far apart.
    return _block_mask(layout, _context_rule(layout, queries, window), queries, T, window)


def _leading_tokens_mask(layout: PackedLayout, window: int | None, tokens: int) -> BlockMask:
    """Among the first packed tokens."""
    layout = _compact(layout)

    def rule(row: Any, query: Any, key: Tensor) -> Tensor:
        return layout.allowed(row, query, key, window)

    return _block_mask(layout, rule, torch.arange(tokens, device=layout.device), tokens, window)


def _compact(layout: PackedLayout) -> PackedLayout:
    """The same rule on 32-bit integers: half the bytes to read in the middle of a kernel."""
    narrow = copy.copy(layout)
    for name in ("visible_context", "subtree_end", "packed_documents", "row_positions"):
        value = getattr(layout, name)
        setattr(narrow, name, None if value is None else value.to(torch.int32))
    return narrow


def _context_rule(layout: PackedLayout, queries: Tensor, window: int | None) -> Callable[[Any, Any, Tensor], Tensor]:
    """`layout.allowed` between completion tokens and the context, as a function of row, place in `queries` and key.

    The same rule with less to look up per pair, in the innermost loop of the kernel.
    """
    visible = layout.visible_context[:, queries].contiguous()
    documents, positions = layout.packed_documents, layout.row_positions
    documents_of_queries = None if documents is None else documents[:, queries].contiguous()
    positions_of_queries = positions[:, queries].contiguous()

    def rule(row: Any, query: Any, key: Tensor) -> Tensor:
        result = key < visible[row, query]
        if documents is not None and documents_of_queries is not None:
            result = result & (documents_of_queries[row, query] == documents[row, key])
        if window is not None:
            result = result & (positions_of_queries[row, query] - positions[row, key] < window)
        return result

    return rule


def _block_mask(
    layout: PackedLayout, rule: Callable[[Any, Any, Tensor], Tensor], queries: Tensor, keys: int, window: int | None
) -> BlockMask:
    """The rule, on row, place in `queries` and key, between the packed tokens `queries` and the first `keys`."""
    alike = layout.rows_alike

    def mask(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return rule(b * 0 if alike else b, q, kv)

    blocks = classify_blocks(layout, queries, keys, window)
    return BlockMask.from_kv_blocks(
        *ordered(blocks.partial),
        *ordered(blocks.whole),
        BLOCK_SIZE=BLOCK,
        mask_mod=mask,
        seq_lengths=(queries.shape[0], keys),
    )


def attend(q: Tensor, k: Tensor, v: Tensor, mask: BlockMask, rule: ScoreRule, context_length: int) -> Tensor:
    training = torch.is_grad_enabled()
    return _attention(
        "training" if training else "forward",
        q,
        k,
        v,
        repeat=training and q.shape[1] != k.shape[1] and _starves(k, context_length),
        score_mod=_cap(rule.softcap),
        block_mask=mask,
        scale=rule.scale,
    )


def _starves(k: Tensor, context_length: int) -> bool:
    """Whether the backward pass would leave most of the GPU idle.

    The gradient of keys has one program per block of keys and key head, and the context's few blocks, which all
    completions look at, are nearly all of the work. Giving every query head keys of its own makes more programs of it:
    on an H200, 12 heads over 2 key heads, 2 sequences of 1024 tokens, 1.26 ms instead of 1.65. The copies take memory,
    so it has to pay: with 128 programs to begin with, on 132 processors, an update gains 1 % (Llama-3.2-1B), with 96
    programs 11 % (SmolLM2-135M, 4096 tokens).
    """
    programs = k.shape[0] * k.shape[1] * -(-context_length // BLOCK)
    return programs <= 0.75 * _processors(k.device)


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def attend_step(
    q: Tensor,
    context_k: Tensor,
    context_v: Tensor,
    own_k: Tensor,
    own_v: Tensor,
    mask: BlockMask,
    rule: ScoreRule,
    step: int,
    at: Tensor,
) -> Tensor:
    """One token of every completion, [b, heads, B*n, d]: the context by FlexAttention, its own few tokens by a small
    product, and the two merged by their log-sum-exps. What own_k and own_v [b, kv, B, n, h, d] hold beyond `step` is
    not looked at, but must be numbers. at: `step` on the device; as a number it would be compiled in."""
    from_context, aux = _attention(
        "step",
        q,
        context_k,
        context_v,
        score_mod=_cap(rule.softcap),
        block_mask=mask,
        scale=rule.scale,
        return_aux=AuxRequest(lse=True),
    )
    # The first few own tokens, rounded up: one compiled kernel then serves many steps.
    shown = min(max(_FEW, 1 << step.bit_length()), own_k.shape[4])
    merge = compiled(_merge_own)
    own_k, own_v = own_k[..., :shown, :], own_v[..., :shown, :]
    return merge(q, from_context, aux.lse, own_k, own_v, at, rule.scale, rule.window, rule.softcap)


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


@cache
def _cap(softcap: float | None) -> Callable[..., Tensor] | None:
    if softcap is None:
        return None

    def cap(score: Tensor, b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return softcap * torch.tanh(score / softcap)

    return cap
