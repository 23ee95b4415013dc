"""The first half of an iteration: rollouts, features, rewards and advantages, for a batch or an accumulation window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor, nn

from ebft.config.method import MethodConfig
from ebft.config.training import EBFTConfig
from ebft.data.packing import PADDING, OnHost, SequenceDataset, collate
from ebft.errors import ConfigError, DataError
from ebft.method.advantages import leave_one_out_advantages
from ebft.method.anchors import whole_answers
from ebft.method.layout import PackedLayout, StridedLayout
from ebft.method.losses import counted_tokens
from ebft.method.metrics import conditional_feature_matching_loss
from ebft.method.rewards import feature_matching_rewards, token_groups, truth_groups
from ebft.method.sampling import sequence_seeds
from ebft.model.features import FeatureNetwork
from ebft.model.rollout import rollout
from ebft.runtime.processes import sum_over_processes
from ebft.runtime.timing import Clock


@dataclass
class Scores:
    """Everything known about the rollouts of a batch: n samples at B anchors of b sequences."""

    packed_ids: Tensor  # [b, S]
    completions: Tensor  # [b, B, n, G]
    completion_lengths: Tensor | None  # [b, B, n]
    groups: Tensor  # [b, B, n], equal completions have equal numbers
    alignment: Tensor  # [b, B, n]
    diversity: Tensor  # [b, B, n]
    cfm: Tensor | None  # [b, B], the unbiased feature-matching loss of every context; None for a single sample

    @classmethod
    def join(cls, parts: Sequence[Scores]) -> Scores:
        joined: dict[str, Any] = {}
        for name in (f.name for f in fields(cls)):
            column = [getattr(part, name) for part in parts]
            joined[name] = None if column[0] is None else torch.cat(column)
        return cls(**joined)


@dataclass
class Window:
    """What one process computes the loss of; counts and metrics are those of all processes together."""

    micro_batches: list[dict[str, Any]]
    generated_tokens: Tensor
    sequences: Tensor
    tokens: Tensor  # of the contexts, padding left out
    metrics: dict[str, Tensor | float]
    example: dict[str, Tensor]  # the first sequence, for the table of samples
    loss_sums: dict[str, Tensor] = field(default_factory=dict)  # over the micro-batches so far, of this process

    def add(self, name: str, value: Tensor) -> None:
        """Add a micro-batch's part of a sum over the window."""
        self.loss_sums[name] = self.loss_sums[name] + value.detach() if name in self.loss_sums else value.detach()


def make_layout(
    on_host: OnHost, config: MethodConfig, samples: int, end_token_ids: Tensor | None, round_up: bool = False
) -> PackedLayout:
    """The layout of a batch under the method's settings. Shapes do not depend on the data with strided anchors.

    round_up: few different shapes also with anchors at answer starts, for code that is compiled for each of them.
    """
    documents, answers = on_host.document_ids, on_host.answer_mask
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
        ends = torch.zeros_like(answers)
        if end_token_ids is not None:
            ends = torch.isin(on_host.input_ids, end_token_ids)
        whole = whole_answers(answers, documents, ends, config.horizon)
        targets = answers if config.answer_only else torch.ones_like(answers)
        return PackedLayout.at_answer_starts(
            whole, config.horizon, samples, round_up=round_up, target_mask=targets, **given
        )
    given["answer_mask"] = answers if config.answer_only else None
    return StridedLayout(config.context_length, config.horizon, config.stride, samples, fixed_shape=True, **given)


def check_sequences(dataset: SequenceDataset, config: MethodConfig, end_token_ids: Tensor | None) -> None:
    """At least one anchor must fit somewhere."""
    if dataset.context_length != config.context_length:
        raise ConfigError(
            f"the dataset has sequences of {dataset.context_length} tokens, context_length is {config.context_length}"
        )
    if len(dataset) == 0:
        raise DataError("the dataset holds no tokens")
    needed = 2 if config.anchors == "answer_start" else config.horizon + 1
    longest = int(dataset.lengths.max())
    if config.packing and not config.document_masks:
        longest = min(dataset.total_tokens, config.context_length)
    if longest < needed:
        raise DataError(
            f"all documents are shorter than one anchor needs: the longest has {longest} tokens, "
            f"horizon={config.horizon} needs {needed}; use a smaller horizon, longer documents, or "
            "packing without document_masks"
        )
    for row in range(min(len(dataset), 2000)):
        batch = collate([dataset[row]])
        if bool(make_layout(batch["on_host"], config, config.samples, end_token_ids).anchor_mask.any()):
            return
    if config.anchors == "answer_start":
        raise DataError(
            "no valid anchor in the data: no answer starts after a context and ends in its sequence, or has horizon="
            f"{config.horizon} tokens in it; use rows with answers, a longer context_length or a smaller horizon"
        )
    raise DataError(
        "no valid anchor in the data: every truth window leaves its document or its answer; use a smaller horizon or "
        "stride, or answer_only=false"
    )


def roll_out(
    model: nn.Module,
    input_ids: Tensor,
    layout: PackedLayout,
    seeds: Tensor,
    config: MethodConfig,
    end_token_ids: Tensor | None,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Completions [b, B, n, G], their lengths [b, B, n] if anything ends them, and the packed sequences [b, S]."""
    completions = rollout(
        model,
        input_ids,
        layout,
        config.temperature,
        seeds=seeds,
        end_token_ids=end_token_ids,
        backend=config.attention_backend,
    )
    lengths = None if end_token_ids is None else layout.completion_lengths(completions, end_token_ids)
    return completions, lengths, layout.pack(input_ids, completions)


def score(
    model: nn.Module,
    features: FeatureNetwork,
    input_ids: Tensor,
    layout: PackedLayout,
    seeds: Tensor,
    config: MethodConfig,
    end_token_ids: Tensor | None,
    clock: Clock | None = None,
) -> Scores:
    """Roll out, look at the rollouts with the frozen network, and compute both terms of the reward."""
    clock = clock or Clock(input_ids.device)
    with clock.phase("rollout"):
        completions, lengths, packed_ids = roll_out(model, input_ids, layout, seeds, config, end_token_ids)
    with clock.phase("features"):
        generated, truth = features(packed_ids, layout, lengths)
    with clock.phase("rewards"):
        groups = token_groups(completions)
        truth_group = _truth_groups(input_ids, layout, completions, lengths, groups)
        alignment, diversity = feature_matching_rewards(generated, truth, config.whitening, groups, truth_group)
        cfm = conditional_feature_matching_loss(generated, truth) if layout.samples > 1 else None
    return Scores(packed_ids, completions, lengths, groups, alignment, diversity, cfm)


def _truth_groups(
    input_ids: Tensor, layout: PackedLayout, completions: Tensor, lengths: Tensor | None, groups: Tensor
) -> Tensor:
    """The group of the samples that are the truth itself, [b, B]; -1 where none is. Both sides up to their own end."""
    steps = torch.arange(layout.horizon, device=input_ids.device)
    slots = layout.truth_slots.expand(input_ids.shape[0], -1, -1)
    truths = input_ids.gather(1, slots.flatten(1)).view(slots.shape)
    truths = torch.where(steps < layout.truth_lengths[..., None], truths, -1)
    if lengths is not None:
        completions = torch.where(steps < lengths[..., None], completions, -1)
    return truth_groups(completions, truths, groups)


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
    round_up = device.type == "cuda"
    layout = make_layout(on_host, config, config.samples, end_token_ids, round_up).to(device)
    at_once = config.rollout_batch_size or rows
    scores = Scores.join(
        [
            score(model, features, input_ids[at], layout.select_rows(at), seeds[at], config, end_token_ids, clock)
            for at in (slice(start, min(start + at_once, rows)) for start in range(0, rows, at_once))
        ]
    )
    advantages = leave_one_out_advantages(scores.alignment, scores.diversity, config.alpha)
    sums = _metric_sums(scores, layout, config.alpha)
    totals = sum_over_processes(_counts(on_host, layout, scores) | sums)
    contexts = totals["contexts"].clamp(min=1)
    metrics: dict[str, Tensor | float] = {name: totals[name] / contexts for name in sums}
    metrics["ebft/anchors"] = totals["contexts"] / totals["sequences"]
    metrics["ebft/packed_tokens"] = totals["packed_tokens"]
    return Window(
        _micro_batches(batches, scores, layout, advantages, totals),
        totals["generated_tokens"],
        totals["sequences"],
        totals["tokens"],
        metrics,
        _example(input_ids, scores, layout, advantages),
    )


def _counts(on_host: OnHost, layout: PackedLayout, scores: Scores) -> dict[str, Tensor]:
    """Of this process's part of the window. What the host knows is not asked of the device."""
    rows, device = scores.packed_ids.shape[0], scores.packed_ids.device
    real = on_host.document_ids != PADDING
    sequences = int(real.any(1).sum())  # rows that only fill up a process's part hold no token
    on_device = {"sequences": sequences, "tokens": int(real.sum()), "packed_tokens": sequences * layout.packed_length}
    return {
        "generated_tokens": counted_tokens(layout, rows, scores.completion_lengths).sum(),
        "truth_tokens": layout.truth_mask.expand(rows, -1)[:, 1:].sum(),
        "contexts": layout.anchor_mask.expand(rows, -1).sum(),
        **{name: torch.full((), count, device=device) for name, count in on_device.items()},
    }


def _metric_sums(scores: Scores, layout: PackedLayout, alpha: float) -> dict[str, Tensor]:
    """Sums over the anchors that count, as tensors: nothing waits for the device here. Logged as means over anchors."""
    rows, n = scores.alignment.shape[0], layout.samples
    valid = layout.anchor_mask.expand(rows, -1)  # [b, B]

    def total(per_context: Tensor) -> Tensor:
        return torch.where(valid, per_context, 0.0).sum()

    reward = scores.alignment - alpha * scores.diversity
    firsts = (scores.groups == torch.arange(n, device=scores.groups.device)).sum(-1)
    sums = {
        "reward": total(reward.mean(-1)),
        "reward_std": total(reward.std(-1) if n > 1 else torch.zeros_like(reward[..., 0])),
        "ebft/alignment": total(scores.alignment.mean(-1)),
        "ebft/diversity": total(scores.diversity.mean(-1)),
        "ebft/distinct": total(firsts / n),
    }
    return sums if scores.cfm is None else sums | {"ebft/cfm": total(scores.cfm)}


def _micro_batches(
    batches: list[dict[str, Any]], scores: Scores, layout: PackedLayout, advantages: Tensor, totals: dict[str, Tensor]
) -> list[dict[str, Any]]:
    found, start = [], 0
    for batch in batches:
        at = slice(start, start + batch["input_ids"].shape[0])
        start = at.stop
        lengths = scores.completion_lengths
        found.append(
            {
                "input_ids": scores.packed_ids[at],
                "layout": layout.select_rows(at),
                "advantages": advantages[at],
                "completion_lengths": None if lengths is None else lengths[at],
                "generated_tokens": totals["generated_tokens"],
                "truth_tokens": totals["truth_tokens"],
            }
        )
    return found


def _example(input_ids: Tensor, scores: Scores, layout: PackedLayout, advantages: Tensor) -> dict[str, Tensor]:
    rows = input_ids.shape[0]
    return {
        "input_ids": input_ids[0],
        "completions": scores.completions[0],
        "alignment": scores.alignment[0],
        "diversity": scores.diversity[0],
        "advantages": advantages[0],
        "anchors": layout.anchors.expand(rows, -1)[0],
        "anchor_mask": layout.anchor_mask.expand(rows, -1)[0],
        "truth_lengths": layout.truth_lengths.expand(rows, -1)[0],
    }
