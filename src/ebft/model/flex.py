"""The `flex` backend: the mask rule as block masks for FlexAttention. CUDA only (no backward on a CPU)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention

from ebft.method.layout import PackedLayout

if TYPE_CHECKING:
    from ebft.model.attention import Rule


# FlexAttention's own limit; narrower heads (toy models) go through the sdpa backend.
SMALLEST_HEAD = 16
# Not "AUTO": that takes a decoding kernel for fewer than 128 queries, which has no variant for most of our masks.
_KERNEL = {"BACKEND": "TRITON"}


# A run meets a handful of shapes: context, step, packed pass, features, each with and without a window. Past torch's
# default limit of 8 it would silently fall back to attention that writes out all scores.
_SHAPES = 64


@cache
def _compiled() -> Callable[..., Any]:
    limits = torch._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, _SHAPES)
    return torch.compile(flex_attention, dynamic=False)


def _block_mask(layout: PackedLayout, window: int | None, batch_size: int, queries: Tensor, keys: int) -> BlockMask:
    """The rule between the packed tokens in `queries` and the first `keys` packed tokens."""
    alike = layout.rows_alike

    def mask(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return layout.allowed(b * 0 if alike else b, queries[q], kv, window)

    return create_block_mask(
        mask, None if alike else batch_size, None, queries.shape[0], keys, device=str(layout.device)
    )


def packed_mask(layout: PackedLayout, window: int | None, batch_size: int) -> BlockMask:
    tokens = torch.arange(layout.packed_length, device=layout.device)
    return _block_mask(layout, window, batch_size, tokens, layout.packed_length)


def context_mask(layout: PackedLayout, window: int | None, batch_size: int) -> BlockMask:
    tokens = torch.arange(layout.context_length, device=layout.device)
    return _block_mask(layout, window, batch_size, tokens, layout.context_length)


def step_mask(layout: PackedLayout, window: int | None, batch_size: int, step: int) -> BlockMask:
    """Between token `step` of every completion and the context."""
    tokens = torch.arange(layout.context_length + step, layout.packed_length, layout.horizon, device=layout.device)
    return _block_mask(layout, window, batch_size, tokens, layout.context_length)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: BlockMask, rule: Rule) -> Tensor:
    return _compiled()(
        q,
        k,
        v,
        score_mod=_cap(rule.softcap),
        block_mask=mask,
        scale=rule.scale,
        enable_gqa=q.shape[1] != k.shape[1],
        kernel_options=_KERNEL,
    )


def attend_step(
    q: Tensor,
    context_k: Tensor,
    context_v: Tensor,
    own_k: Tensor,
    own_v: Tensor,
    mask: BlockMask,
    rule: Rule,
    step: int,
) -> Tensor:
    """One token of every completion, [b, heads, B*n, d]: the context by FlexAttention, its own few tokens by a small
    product, and the two merged by their log-sum-exps."""
    from_context, aux = _compiled()(
        q,
        context_k,
        context_v,
        score_mod=_cap(rule.softcap),
        block_mask=mask,
        scale=rule.scale,
        enable_gqa=q.shape[1] != context_k.shape[1],
        kernel_options=_KERNEL,
        return_aux=AuxRequest(lse=True),
    )
    B, n, kv = own_k.shape[2], own_k.shape[3], own_k.shape[1]
    grouped = q.unflatten(1, (kv, -1)).unflatten(3, (B, n))  # [b, kv, heads/kv, B, n, d]
    scores = rule.scores(torch.einsum("zkrbnd,zkbnhd->zkrbnh", grouped.float(), own_k.float()))
    if rule.window is not None:
        back = step - torch.arange(step + 1, device=q.device)
        scores = scores.masked_fill(back >= rule.window, float("-inf"))
    own_lse = scores.logsumexp(-1)
    weights = (scores - own_lse[..., None]).exp().to(own_v.dtype)
    from_own = torch.einsum("zkrbnh,zkbnhd->zkrbnd", weights, own_v)
    context_lse = aux.lse.unflatten(1, (kv, -1)).unflatten(3, (B, n)).float()
    share = torch.sigmoid(context_lse - own_lse)[..., None]  # of the context in the joint softmax
    context_part = from_context.unflatten(1, (kv, -1)).unflatten(3, (B, n))
    merged = share * context_part.float() + (1 - share) * from_own.float()
    return merged.to(q.dtype).flatten(3, 4).flatten(1, 2)


@cache
def _cap(softcap: float | None) -> Callable[..., Tensor] | None:
    if softcap is None:
        return None

    def cap(score: Tensor, b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return softcap * torch.tanh(score / softcap)

    return cap
