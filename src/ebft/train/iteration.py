"""The first half of an iteration, for a whole accumulation window: rollouts, features, rewards, advantages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ebft.config import EBFTConfig
from ebft.data.packing import PADDING, OnHost
from ebft.method.advantages import leave_one_out_advantages
from ebft.method.layout import PackedLayout, StridedLayout
from ebft.method.losses import counted_tokens
from ebft.method.metrics import conditional_feature_matching_loss
from ebft.method.rewards import feature_matching_rewards, token_groups
from ebft.method.sampling import sequence_seeds
from ebft.model.features import FeatureNetwork
from ebft.model.rollout import rollout
from ebft.train.clock import Clock


@dataclass
class Scores:
    """Everything known about the rollouts of a batch; n samples at B anchors of b sequences."""

    layout: PackedLayout
    packed_ids: Tensor  # [b, S]
    completions: Tensor  # [b, n, B, G]
    completion_lengths: Tensor | None  # [b, n, B]
    generated: Tensor  # features [b, B, n, D]
    truth: Tensor  # [b, B, D]
    groups: Tensor  # [b, B, n]
    alignment: Tensor  # [b, B, n]
    diversity: Tensor  # [b, B, n]


@dataclass
class Window:
    micro_batches: list[dict[str, Any]]
    generated_tokens: Tensor
    metrics: dict[str, Tensor | float]
    example: dict[str, Tensor]  # the first sequence, for the table of samples
    begun: dict[str, bool] = field(default_factory=dict)


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
        groups = token_groups(completions.transpose(1, 2))
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
    """Score all sequences of the window, `rollout_batch_size` at a time, and hand them back as micro-batches."""
    input_ids = torch.cat([batch["input_ids"] for batch in batches])
    rows, device = input_ids.shape[0], input_ids.device
    seeds = sequence_seeds(config.seed, step, torch.cat([batch["sequence_id"] for batch in batches]))
    layout = make_layout(OnHost.joined([batch["on_host"] for batch in batches]), config, config.samples).to(device)
    at_once = config.rollout_batch_size or rows
    parts = [
        score(model, features, input_ids[at], layout.select_rows(at), seeds[at], config, end_token_ids, clock)
        for at in (slice(start, min(start + at_once, rows)) for start in range(0, rows, at_once))
    ]
    packed_ids = torch.cat([part.packed_ids for part in parts])
    alignment = torch.cat([part.alignment for part in parts])
    diversity = torch.cat([part.diversity for part in parts])
    advantages = leave_one_out_advantages(alignment, diversity, config.alpha).transpose(1, 2)  # [b, n, B]
    lengths = None
    if parts[0].completion_lengths is not None:
        lengths = torch.cat([part.completion_lengths for part in parts if part.completion_lengths is not None])
    counted = counted_tokens(layout, rows, lengths)
    generated_tokens = counted.sum()
    truth_tokens = layout.truth_mask.expand(rows, -1)[:, 1:].sum()

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
    metrics = _metrics(parts, layout, alignment, diversity, config)
    metrics["ebft/packed_tokens"] = float(packed_ids.numel())
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
    return Window(micro_batches, generated_tokens, metrics, example)


def _metrics(
    parts: list[Scores], layout: PackedLayout, alignment: Tensor, diversity: Tensor, config: EBFTConfig
) -> dict[str, Tensor | float]:
    """Means over the anchors that count, as tensors: nothing waits for the device here."""
    rows, n = alignment.shape[0], alignment.shape[-1]
    valid = layout.anchor_mask.expand(rows, -1)  # [b, B]
    count = valid.sum().clamp(min=1)

    def mean(per_context: Tensor) -> Tensor:
        return torch.where(valid, per_context, 0.0).sum() / count

    reward = alignment - config.alpha * diversity
    groups = torch.cat([part.groups for part in parts])
    firsts = (groups == torch.arange(n, device=groups.device)).sum(-1)
    metrics: dict[str, Tensor | float] = {
        "reward": mean(reward.mean(-1)),
        "reward_std": mean(reward.std(-1)) if n > 1 else 0.0,
        "ebft/alignment": mean(alignment.mean(-1)),
        "ebft/diversity": mean(diversity.mean(-1)),
        "ebft/distinct": mean(firsts / n),
        "ebft/anchors": valid.sum() / rows,
    }
    if n > 1:
        cfm = torch.cat([conditional_feature_matching_loss(part.generated, part.truth) for part in parts])
        metrics["ebft/cfm"] = mean(cfm)
    return metrics
