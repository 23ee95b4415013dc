"""Rollouts: n completions of G tokens from every anchor of every sequence, all side by side.

The context is computed once for all completions and its keys and values are kept once; G-1 cached steps follow,
each with one token of every completion. Logits are made only at the rows that are sampled, in chunks: at the
anchors once for all n samples.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ebft.method import Backend
from ebft.method.cross_entropy import Head, rows_per_chunk
from ebft.method.layout import PackedLayout
from ebft.method.sampling import check_sampling, sample_with_entropy, uniforms
from ebft.model.attention import ASK, CachedPass, Computed, ask, rounded_up
from ebft.model.backbone import decoder_of, evaluating, fitting_layout, output_head, prepare_model, run_decoder
from ebft.runtime.sharding import is_sharded

Sampling = tuple[float, int | None, float | None]  # temperature, top_k, top_p
Sizes = tuple[int | None, ...]  # how many samples are computed at each step

# How many samples led at each step of a model's last rollouts, by what kind of rollout it was.
_LED: WeakKeyDictionary[nn.Module, dict[Hashable, deque[list[int]]]] = WeakKeyDictionary()


@torch.no_grad()
def rollout(
    model: nn.Module,
    input_ids: Tensor,
    layout: PackedLayout,
    temperature: float = 0.6,
    top_k: int | None = None,
    top_p: float | None = None,
    seeds: Tensor | None = None,
    end_token_ids: Tensor | None = None,
    backend: Backend = "auto",
    share: bool = True,
) -> Tensor:
    """Completions, LongTensor [b, B, n, G].

    Args:
        model: any decoder-only transformers model with rotary or absolute positions, with or without adapters.
        input_ids: contexts [b, T].
        layout: where the anchors are.
        temperature: 0 is greedy.
        top_k, top_p: keep only the k likeliest tokens, or the smallest set with probability p. The training
            log-probs are those of the whole distribution, so leave both off for policy gradients.
        seeds: LongTensor [b], one per sequence. What is sampled for a sequence depends on its seed alone. None
            draws them from torch's global generator.
        end_token_ids: LongTensor; what follows the first of these in a completion is replaced by it. None runs on
            past end tokens, as the released code does.
        backend: "auto", "sdpa" or "flex".
        share: samples that have drawn the same tokens so far are computed once. False: each on its own.

    Completions of anchors that a row drops (`layout.anchor_mask`) mean nothing.
    """
    return draw(model, input_ids, layout, (temperature, top_k, top_p), seeds, end_token_ids, backend, share).completions


class Drawn(NamedTuple):
    """A rollout, and what comes with it for nothing."""

    completions: Tensor  # [b, B, n, G]
    entropy: Tensor  # float32 [b, B, n, G], of the distribution that each token was drawn from
    context: Tensor  # [b, T, H], last hidden states of the contexts


@torch.no_grad()
def draw(
    model: nn.Module,
    input_ids: Tensor,
    layout: PackedLayout,
    sampling: Sampling,
    seeds: Tensor | None,
    end_token_ids: Tensor | None,
    backend: Backend,
    share: bool,
) -> Drawn:
    """`rollout`, with its entropies and the hidden states of the contexts."""
    base, b, device = prepare_model(model), len(input_ids), input_ids.device
    check_sampling(*sampling)
    layout = fitting_layout(decoder_of(base), layout, input_ids)
    seeds = torch.randint(2**62, (b,)) if seeds is None else seeds
    if seeds.shape != (b,):
        raise ValueError(f"seeds has shape {tuple(seeds.shape)}, the batch needs one seed per sequence: [{b}]")
    seeds = seeds.to(device=device, dtype=torch.long, non_blocking=True)

    run = partial(_generate, base, backend, sampling, layout, input_ids, seeds)
    drawn = _run_sharing(run, base, layout, b, sampling) if share and layout.horizon > 1 else run(None)[0]
    if end_token_ids is None:
        return drawn
    # What follows the first end token is replaced by that token, so that equal completions stay equal.
    last = layout.completion_lengths(drawn.completions, end_token_ids)[..., None] - 1
    shown = torch.minimum(torch.arange(layout.horizon, device=device), last)
    return drawn._replace(completions=drawn.completions.gather(-1, shown))


def _run_sharing(
    run: Callable[[Sizes], tuple[Drawn, Tensor]], base: nn.Module, layout: PackedLayout, b: int, sampling: Sampling
) -> Drawn:
    """Samples that have drawn the same tokens so far are computed once. On a GPU the host waits at the end, to learn
    whether there were more of them than expected: then all is done again."""
    asking: Sizes = (ASK,) * (layout.horizon - 1)
    if layout.device.type != "cuda" or is_sharded(base):  # shards are gathered by all processes: none does it again
        return run(asking)[0]
    kind = (b, layout.num_anchors, layout.samples, layout.horizon, sampling)
    led = _LED.setdefault(base, {}).setdefault(kind, deque(maxlen=64))
    expected = expected_sizes(led, b * layout.num_anchors * layout.samples)
    drawn, leading = run(expected or asking)
    led.append(ask([leading])[0])
    if expected is not None and any(count > size for count, size in zip(led[-1], expected, strict=True)):
        drawn, leading = run(asking)
        led[-1] = ask([leading])[0]
    return drawn


def expected_sizes(led: Iterable[Sequence[int]], samples: int) -> tuple[int, ...] | None:
    """A little more than any of the last rollouts of so many samples needed, since windows of text differ; None before
    the first one."""
    return tuple(rounded_up(int(max(counts) * 1.06), samples) for counts in zip(*led, strict=True)) or None


def _generate(
    base: nn.Module,
    backend: Backend,
    sampling: Sampling,
    layout: PackedLayout,
    input_ids: Tensor,
    seeds: Tensor,
    sizes: Sizes | None,
) -> tuple[Drawn, Tensor]:
    """The rollout itself; and of each step how many samples led.

    sizes: how many samples compute at each step; None: all of them.
    """
    b, T, device = len(input_ids), layout.context_length, input_ids.device
    n, B, G = layout.samples, layout.num_anchors, layout.horizon
    decoder, cached = decoder_of(base), CachedPass(layout, backend)
    uniform = uniforms(seeds, layout.anchors, n, G)  # [b, B, n, G]
    positions, kept = layout.position_ids.expand(b, -1), layout.anchor_mask.expand(b, -1)
    completions = torch.empty(b, B, n, G, dtype=torch.long, device=device)
    entropies = torch.empty(b, B, n, G, device=device)
    leading = torch.zeros(G - 1, dtype=torch.long, device=device)
    with evaluating(base):
        context = run_decoder(decoder, input_ids, positions[:, :T], cached)
        head = output_head(base).prepared(context)  # once for all steps; a sharded one is gathered by now
        rows = layout.before_anchors(context).flatten(0, 1)
        tokens, entropy = _sample_rows(head, rows, uniform[..., 0].flatten(0, 1), sampling)
        completions[..., 0], entropies[..., 0] = tokens.view(b, B, n), entropy.view(b, B, 1)
        for cached.step in range(G - 1):
            step, following = cached.step, cached.step + 1
            if sizes is not None:
                begun = completions[..., :following]
                cached.computed, leading[step] = Computed.of_samples(begun, kept, sizes[step])
            ids, places = completions[..., step].flatten(1), positions[:, T + step :: G]
            rows = run_decoder(decoder, ids, places, cached).flatten(0, 1)
            group = None if cached.computed is None else cached.computed.standing
            tokens, entropy = _sample_rows(head, rows, uniform[..., following].reshape(-1, 1), sampling, group)
            completions[..., following], entropies[..., following] = tokens.view(b, B, n), entropy.view(b, B, n)
    return Drawn(completions, entropies, context), leading


def _sample_rows(
    head: Head, hidden: Tensor, uniform: Tensor, sampling: Sampling, group: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Tokens [R, m] for hidden rows [R, H] and uniform numbers [R, m], and the rows' entropies [R], a chunk of logits
    at a time. group: [N], which row each of uniform numbers [N, 1] is for; tokens and entropies are N then."""
    chunk = rows_per_chunk(head, hidden.device)
    tokens, entropies = torch.empty_like(uniform, dtype=torch.long), []
    for start in range(0, hidden.shape[0], chunk):
        at: slice | Tensor = slice(start, start + chunk)
        logits, rows = head.logits(hidden[at]), None
        if group is not None:
            of_chunk = (group >= start) & (group < start + chunk)
            # A GPU is not asked how many they are: all draw, and those of other chunks in vain.
            at = slice(None) if logits.is_cuda else of_chunk.nonzero()[:, 0]
            rows = (group[at] - start).clamp(0, len(logits) - 1)
        drawn, entropy = sample_with_entropy(logits, uniform[at], *sampling, rows)
        if group is not None and logits.is_cuda:
            drawn = torch.where(of_chunk[:, None], drawn, tokens)
        tokens[at] = drawn
        entropies.append(entropy)
    entropy = torch.cat(entropies)
    return tokens, entropy if group is None else entropy[group]
