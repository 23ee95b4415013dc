"""Sampling that depends on nothing but the sequence's own seed.

Each token of each completion gets one uniform number, a hash of (seed, anchor, sample, step), and takes the token
where the cumulative distribution passes it. So a completion does not depend on the batch it is in, on the number
of samples or anchors beside it, on processes or on the device: exact resume and equality across process counts
rest on that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ebft.method.compiling import compiled

T = TypeVar("T")

# 64-bit constants of the splitmix64 finaliser, written as the signed integers torch stores.
_MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2 = 0x94D049BB133111EB - (1 << 64)
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_GOLDEN_ODD = 0x632BE59BD9B4E019
# Tokens of a block. Few enough to stay in a GPU's registers between their highest logit and their sums.
BLOCK = 128


def uniforms(seeds: Tensor, anchors: Tensor, samples: int, horizon: int) -> Tensor:
    """Uniform numbers in (0, 1) as float32 [b, B, n, G] for seeds [b] and anchors [B] or [b, B]."""
    device = anchors.device
    key = _mix(seeds.to(device=device, dtype=torch.long) + _GOLDEN)[:, None]
    key = _mix(key + torch.atleast_2d(anchors) * _GOLDEN)[..., None]
    key = _mix(key + (torch.arange(samples, device=device) + 1) * _GOLDEN)[..., None]
    key = _mix(key + (torch.arange(horizon, device=device) + 1) * _GOLDEN)
    # The middle of one of 2^23 intervals, which float32 holds exactly: never 0, which would take the first token of the
    # vocabulary however unlikely it is, and never 1, which would overrun the last.
    return (_shift_right(key, 41).to(torch.float32) + 0.5) * 2.0**-23


def sequence_seeds(run_seed: int, step: int, sequence_ids: Tensor) -> Tensor:
    """A seed per sequence [b], for this run and step; the same whatever batch or process the sequence is in."""
    # `full`, not `tensor`: filling on the device waits for nothing, copying from the host does.
    key = _mix(torch.full((), run_seed, dtype=torch.long, device=sequence_ids.device) + _GOLDEN)
    key = _mix(key + torch.full((), step + 1, dtype=torch.long, device=key.device) * _GOLDEN_ODD)
    return _mix(key + (sequence_ids.long() + 1) * _GOLDEN)


def sample_with_entropy(
    logits: Tensor,
    uniform: Tensor,
    temperature: float,
    top_k: int | None = None,
    top_p: float | None = None,
    rows: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Tokens [R, m] for float32 logits [R, V] and m uniform numbers a row [R, m], and the entropy [R] of the
    distribution they are drawn from; temperature 0 is greedy.

    rows: [N], with uniform numbers [N, 1]: which row each is for. Some rows may have many, others few.
    """
    if temperature == 0:
        likeliest = logits.argmax(-1, keepdim=True)
        likeliest = likeliest if rows is None else likeliest[rows]
        return likeliest.expand_as(uniform), torch.zeros_like(logits[:, 0])
    if top_k is not None or top_p is not None:
        logits = truncate(logits / temperature, top_k, top_p) * temperature
    inverse = 1 / temperature
    highest, masses, entropy = fused(masses_by_block, [logits], inverse)
    return _choose(logits, inverse, uniform, highest, masses, rows), entropy


def fused(function: Callable[..., T], tensors: Sequence[Tensor], *constants: object) -> T:
    """function(*tensors, *constants): on a GPU compiled, for any number of rows, which all tensors have in common."""
    if not tensors[0].is_cuda:
        return function(*tensors, *constants)
    for tensor in tensors:
        torch._dynamo.maybe_mark_dynamic(tensor, 0)
    return compiled(function)(*tensors, *constants)


def masses_by_block(logits: Tensor, inverse_temperature: float | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """The highest logit of each row [R, 1], the mass of each block of tokens relative to it [R, blocks], and the
    entropy [R]. Once compiled, the logits are read once and nothing but sums is written."""
    logits = logits if inverse_temperature is None else logits * inverse_temperature
    lowest = torch.finfo(logits.dtype).min  # a token without any mass has a logit of minus infinity
    missing = -logits.shape[-1] % BLOCK
    padded = F.pad(logits, (0, missing), value=-torch.inf) if missing else logits
    blocks = padded.unflatten(-1, (-1, BLOCK))
    highest_of_block = blocks.amax(-1).clamp(min=lowest)
    below = blocks - highest_of_block[..., None]
    masses = torch.exp(below)
    sums, products = masses.sum(-1), (masses * below.clamp(min=lowest)).sum(-1)
    highest = highest_of_block.amax(-1, keepdim=True)
    down = (highest_of_block - highest).clamp(min=lowest)
    scale = torch.exp(down)
    entropy_part = (scale * (products + sums * down)).sum(-1)
    sums = sums * scale
    total = sums.sum(-1)
    return highest, sums, total.log() - entropy_part / total


def _choose(
    logits: Tensor, inverse_temperature: float, uniform: Tensor, highest: Tensor, masses: Tensor, rows: Tensor | None
) -> Tensor:
    """The token where the cumulative mass passes the uniform number: first its block, then its place in the block."""
    cumulative = masses.double().cumsum(-1)
    if rows is not None:
        cumulative, masses, highest = cumulative[rows], masses[rows], highest[rows]
    target = uniform.double() * cumulative[:, -1:]
    # right=True: the first block whose cumulative mass exceeds the target, which therefore has mass itself.
    block = torch.searchsorted(cumulative, target, right=True).clamp(max=masses.shape[-1] - 1)
    before = (cumulative.gather(1, block) - masses.gather(1, block).double())[..., None]
    tokens = block[..., None] * BLOCK + torch.arange(BLOCK, device=logits.device)  # [R, m, tokens of the block]
    inside = tokens < logits.shape[-1]
    tokens = tokens.clamp(max=logits.shape[-1] - 1)
    own = logits.gather(1, tokens.flatten(1)) if rows is None else logits[rows[:, None], tokens.flatten(1)]
    own = own.view_as(tokens)
    mass = torch.where(inside, torch.exp(own * inverse_temperature - highest[..., None]), 0.0)
    passed = (before + mass.double().cumsum(-1) <= target[..., None]).sum(-1)
    # The sum of a block, rounded, may exceed the running sum: then the last token that has any mass.
    last = (torch.arange(BLOCK, device=logits.device) * (mass > 0)).amax(-1)
    return tokens.gather(-1, torch.minimum(passed, last)[..., None])[..., 0]


def truncate(logits: Tensor, top_k: int | None, top_p: float | None) -> Tensor:
    """Minus infinity outside the k likeliest tokens, then outside the smallest set with mass at least p."""
    if top_k is not None and top_k < logits.shape[-1]:
        threshold = logits.topk(top_k, -1).values[:, -1:]
        logits = logits.masked_fill(logits < threshold, float("-inf"))
    if top_p is not None and top_p < 1:
        ordered, order = logits.sort(-1, descending=True)
        probabilities = ordered.softmax(-1)
        mass_before = probabilities.cumsum(-1) - probabilities
        outside = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, mass_before >= top_p)
        logits = logits.masked_fill(outside, float("-inf"))
    return logits


def check_sampling(temperature: float, top_k: int | None, top_p: float | None) -> None:
    if not temperature >= 0 or (top_k is not None and top_k < 1) or (top_p is not None and not 0 < top_p <= 1):
        raise ValueError(f"{temperature=} must be 0 (greedy) or more, {top_k=} at least 1, and {top_p=} in (0, 1]")


def _mix(x: Tensor) -> Tensor:
    """splitmix64's finaliser; int64 products wrap around, as it needs."""
    x = (x ^ _shift_right(x, 30)) * _MIX_1
    x = (x ^ _shift_right(x, 27)) * _MIX_2
    return x ^ _shift_right(x, 31)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical shift: torch's own copies the sign bit."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
