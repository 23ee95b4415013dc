"""The `flex` backend: the mask rule as block masks for FlexAttention. CUDA only (no backward on a CPU)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from ebft.method.compiling import compiled
from ebft.method.layout import PackedLayout
from ebft.model.blocks import BLOCK, classify_blocks, ordered

if TYPE_CHECKING:
    from ebft.model.attention import Rule


# FlexAttention's own limit; narrower heads (toy models) go through the sdpa backend.
SMALLEST_HEAD = 16
# Not "AUTO": that takes a decoding kernel for fewer than 128 queries, which has no variant for most of our masks.
_KERNEL = {"BACKEND": "TRITON"}


def _attention(*args: Any, **kwargs: Any) -> Any:
    return compiled(flex_attention)(*args, **kwargs, kernel_options=_KERNEL)


def _block_mask(layout: PackedLayout, window: int | None, queries: Tensor | None, keys: int) -> BlockMask:
    """The rule between the packed tokens in `queries` (None: the first `keys`) and the first `keys` packed tokens."""
    alike, rule = layout.rows_alike, layout.compact()

    def mask(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return rule.allowed(b * 0 if alike else b, q if queries is None else queries[q], kv, window)

    tokens = torch.arange(keys, device=layout.device) if queries is None else queries
    blocks = classify_blocks(rule, tokens, keys, window)
    return BlockMask.from_kv_blocks(
        *ordered(blocks.partial),
        *ordered(blocks.whole),
        BLOCK_SIZE=BLOCK,
        mask_mod=mask,
        seq_lengths=(tokens.shape[0], keys),
    )


def packed_mask(layout: PackedLayout, window: int | None) -> BlockMask:
    return _block_mask(layout, window, None, layout.packed_length)


def context_mask(layout: PackedLayout, window: int | None) -> BlockMask:
    return _block_mask(layout, window, None, layout.context_length)


def step_mask(layout: PackedLayout, window: int | None, step: int) -> BlockMask:
    """Between token `step` of every completion and the context."""
    tokens = torch.arange(layout.context_length + step, layout.packed_length, layout.horizon, device=layout.device)
    return _block_mask(layout, window, tokens, layout.context_length)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: BlockMask, rule: Rule, context_length: int) -> Tensor:
    if torch.is_grad_enabled() and q.shape[1] != k.shape[1] and _starves(k, context_length):
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    return _attention(
        q,
        k,
        v,
        score_mod=_cap(rule.softcap),
        block_mask=mask,
        scale=rule.scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )


def _starves(k: Tensor, context_length: int) -> bool:
    """Whether the backward pass would leave most of the GPU idle.

    The gradient of keys has one program per block of keys and key head, and the context's few blocks, which all
    completions look at, are nearly all of the work. Giving every query head keys of its own makes more programs of it:
    on an H200, 12 heads over 2 key heads, 2 sequences of 1024 tokens, 1.26 ms instead of 1.65; with more programs to
    begin with, it only costs.
    """
    programs = k.shape[0] * k.shape[1] * -(-context_length // BLOCK)
    return 2 * programs <= _processors(k.device)


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
    rule: Rule,
    step: int,
) -> Tensor:
    """One token of every completion, [b, heads, B*n, d]: the context by FlexAttention, its own few tokens by a small
    product, and the two merged by their log-sum-exps. What own_k and own_v [b, kv, B, n, h, d] hold beyond `step` is
    not looked at, but must be numbers."""
    from_context, aux = _attention(
        q,
        context_k,
        context_v,
        score_mod=_cap(rule.softcap),
        block_mask=mask,
        scale=rule.scale,
        enable_gqa=q.shape[1] != context_k.shape[1],
        return_aux=AuxRequest(lse=True),
    )
    # The first few own tokens, rounded up: one compiled kernel then serves many steps.
    shown = min(max(8, 1 << step.bit_length()), own_k.shape[4])
    at = torch.full((), step, device=q.device)  # a tensor: as a number it would be compiled in
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

    # A handful of keys a query: products written out, so that all of this becomes one kernel.
    own_k, own_v = own_k[:, :, None].float(), own_v[:, :, None].float()  # [b, kv, 1, B, n, h, d]
    scores = (by_sample(q).float()[..., None, :] * own_k).sum(-1) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    back = step - torch.arange(own_k.shape[-2], device=q.device)
    seen = back >= 0 if window is None else (back >= 0) & (back < window)
    scores = scores.masked_fill(~seen, float("-inf"))
    own_lse = scores.logsumexp(-1)
    weights = (scores - own_lse[..., None]).exp()
    from_own = (weights[..., None] * own_v).sum(-2)
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
