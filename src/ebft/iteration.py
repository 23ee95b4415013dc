"""The first half of an iteration, for a whole accumulation window: rollouts, features, rewards, advantages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ebft.config.training import EBFTConfig
from ebft.data.packing import PADDING, OnHost
from ebft.method.advantages import leave_one_out_advantages
from ebft.method.layout import PackedLayout, StridedLayout
from ebft.method.losses import counted_tokens
from ebft.method.metrics import conditional_feature_matching_loss
from ebft.method.rewards import feature_matching_rewards, token_groups
from ebft.method.sampling import sequence_seeds
from ebft.model.features import FeatureNetwork
from ebft.model.rollout import rollout
from ebft.runtime.processes import sum_over_processes
from ebft.runtime.timing import Clock


@dataclass
class Scores:
    """Everything known about the rollouts of a batch; n samples at B anchors of b sequences."""

    layout: PackedLayout
    packed_ids: Tensor  # [b, S]
    completions: Tensor  # [b, B, n, G]
    completion_lengths: Tensor | None  # [b, B, n]
    generated: Tensor  # features [b, B, n, D]
    truth: Tensor  # [b, B, D]
    groups: Tensor  # [b, B, n]
    alignment: Tensor  # [b, B, n]
    diversity: Tensor  # [b, B, n]


@dataclass
class Window:
    """What one process computes the loss of; counts and metrics are those of all processes together."""

    micro_batches: list[dict[str, Any]]
    generated_tokens: Tensor
    sequences: Tensor
    tokens: Tensor  # of the contexts, padding left out
    metrics: dict[str, Tensor | float]
    example: dict[str, Tensor]  # the first sequence, for the table of samples
    parts: dict[str, Tensor] = field(default_factory=dict)  # sums over the micro-batches so far, of this process


def make_layout(on_host: OnHost, config: EBFTConfig, samples: int) -> PackedLayout:
    """The layout of a batch under the run's settings. Shapes do not depend on the data with strided anchors."""
    documents = on_host.document_ids
    answers = on_host.answer_mask if config.answer_only or config.anchors == "answer_start" else None
    padding = documents == PADDING
    lengths = None
    if not config.document_masks and bool(padding.any()):
        lengths = (~padding).sum(1)
    given: dict[str, Any] = {
        "document_ids": documents if config.document_masks else None,
        "lengths": lengths,
        "allow_empty": True,
    }
    if config.anchors == "answer_start":
        assert answers is not None
        on_gpu = config.device.type == "cuda"
        return PackedLayout.at_answer_starts(answers, config.horizon, samples, round_up=on_gpu, **given)
    return StridedLayout(
        config.context_length, config.horizon, config.stride, samples, answer_mask=answers, fixed_shape=True, **given
    )


def score(
    model: nn.Module,
    features: FeatureNetwork,
    input_ids: Tensor,
    layout: PackedLayout,
    seeds: Tensor,
    config: EBFTConfig,
    end_token_ids: Tensor | None,
    clock: Clock | None = None,
) -> Scores:
    """Roll out, look at the rollouts with the frozen network, and compute both terms of the reward."""
    backend: Any = config.attention_backend
    clock = clock or Clock(input_ids.device)
    with clock.phase("rollout"):
        completions = rollout(
            model, input_ids, layout, config.temperature, seeds=seeds, end_token_ids=end_token_ids, backend=backend
        )
        lengths = None if end_token_ids is None else layout.completion_lengths(completions, end_token_ids)
        packed_ids = layout.pack(input_ids, completions)
    # A moving average keeps float32 weights and still computes in bf16; any other network is in bf16 as a whole.
    autocast = torch.autocast(
        input_ids.device.type, torch.bfloat16, enabled=config.bf16 and features.source == "average"
    )
    with clock.phase("features"), autocast:
        generated, truth = features(packed_ids, layout, lengths)
    with clock.phase("rewards"):
        groups = token_groups(completions)
        whitening: Any = config.whitening
        alignment, diversity = feature_matching_rewards(generated, truth, whitening, groups)
    return Scores(layout, packed_ids, completions, lengths, generated, truth, groups, alignment, diversity)


def prepare_window(
    model: nn.Module,
    features: FeatureNetwork,
    batches: list[dict[str, Any]],
    config: EBFTConfig,
    step: int,
    end_token_ids: Tensor | None,
    clock: Clock | None = None,
) -> Window:
    """Score all sequences of the window, `rollout_batch_size` at a time, and hand them back as micro-batches.

    With several processes `batches` are this process's part of the window. Its micro-batches carry the token counts of
    the whole window, so that the losses and gradients of all processes add up to those of the window.
    """
    input_ids = torch.cat([batch["input_ids"] for batch in batches])
    rows, device = input_ids.shape[0], input_ids.device
    seeds = sequence_seeds(config.seed, step, torch.cat([batch["sequence_id"] for batch in batches]))
    on_host = OnHost.joined([batch["on_host"] for batch in batches])
    layout = make_layout(on_host, config, config.samples).to(device)
    at_once = config.rollout_batch_size or rows
    parts = [
        score(model, features, input_ids[at], layout.select_rows(at), seeds[at], config, end_token_ids, clock)
        for at in (slice(start, min(start + at_once, rows)) for start in range(0, rows, at_once))
    ]
    packed_ids = torch.cat([part.packed_ids for part in parts])
    alignment = torch.cat([part.alignment for part in parts])
    diversity = torch.cat([part.diversity for part in parts])
    advantages = leave_one_out_advantages(alignment, diversity, config.alpha)
    lengths = None
    if parts[0].completion_lengths is not None:
        lengths = torch.cat([part.completion_lengths for part in parts if part.completion_lengths is not None])
    # On the host, without asking the device: rows that are only there to fill up a process's part hold no token.
    sequences = int((on_host.document_ids != PADDING).any(1).sum())
    totals = sum_over_processes(
        {
            "generated_tokens": counted_tokens(layout, rows, lengths).sum(),
            "truth_tokens": layout.truth_mask.expand(rows, -1)[:, 1:].sum(),
            "sequences": torch.full((), sequences, device=device),
            "tokens": torch.full((), int((on_host.document_ids != PADDING).sum()), device=device),
            "contexts": layout.anchor_mask.expand(rows, -1).sum(),
            "packed_tokens": torch.full((), sequences * packed_ids.shape[1], device=device),
            **_metrics(parts, layout, alignment, diversity, config),
        }
    )
    generated_tokens, truth_tokens = totals.pop("generated_tokens"), totals.pop("truth_tokens")
    total_sequences, contexts = totals.pop("sequences"), totals.pop("contexts")
    packed_tokens, tokens = totals.pop("packed_tokens"), totals.pop("tokens")

    micro_batches, start = [], 0
    for batch in batches:
        at = slice(start, start + batch["input_ids"].shape[0])
        start = at.stop
        micro_batches.append(
            {
                "input_ids": packed_ids[at],
                "layout": layout.select_rows(at),
                "advantages": advantages[at],
                "completion_lengths": None if lengths is None else lengths[at],
                "generated_tokens": generated_tokens,
                "truth_tokens": truth_tokens,
            }
        )
    metrics: dict[str, Tensor | float] = {name: total / contexts.clamp(min=1) for name, total in totals.items()}
    metrics["ebft/anchors"] = contexts / total_sequences
    metrics["ebft/packed_tokens"] = packed_tokens
    example = {
        "input_ids": input_ids[0],
        "completions": parts[0].completions[0],
        "alignment": alignment[0],
        "diversity": diversity[0],
        "advantages": advantages[0],
        "anchors": layout.anchors.expand(rows, -1)[0],
        "anchor_mask": layout.anchor_mask.expand(rows, -1)[0],
        "truth_lengths": layout.truth_lengths.expand(rows, -1)[0],
    }
    return Window(micro_batches, generated_tokens, total_sequences, tokens, metrics, example)


def _metrics(
    parts: list[Scores], layout: PackedLayout, alignment: Tensor, diversity: Tensor, config: EBFTConfig
) -> dict[str, Tensor]:
    """Sums over the anchors that count, as tensors: nothing waits for the device here. Logged as means over anchors."""
    rows, n = alignment.shape[0], alignment.shape[-1]
    valid = layout.anchor_mask.expand(rows, -1)  # [b, B]

    def total(per_context: Tensor) -> Tensor:
        return torch.where(valid, per_context, 0.0).sum()

    reward = alignment - config.alpha * diversity
    groups = torch.cat([part.groups for part in parts])
    firsts = (groups == torch.arange(n, device=groups.device)).sum(-1)
    metrics = {
        "reward": total(reward.mean(-1)),
        "reward_std": total(reward.std(-1) if n > 1 else torch.zeros_like(reward[..., 0])),
        "ebft/alignment": total(alignment.mean(-1)),
        "ebft/diversity": total(diversity.mean(-1)),
        "ebft/distinct": total(firsts / n),
    }
    if n > 1:
        cfm = torch.cat([conditional_feature_matching_loss(part.generated, part.truth) for part in parts])
        metrics["ebft/cfm"] = total(cfm)
    return metrics
