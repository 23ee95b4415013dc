"""One iteration: rollouts, features, rewards and advantages of a window of rows, then the loss of a micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from ebft.config.method import MethodConfig
from ebft.config.training import EBFTConfig
from ebft.data.packing import PADDING, Batch, OnHost, SequenceDataset, collate
from ebft.errors import DataError
from ebft.method.anchors import whole_answers
from ebft.method.cross_entropy import Reference
from ebft.method.layout import PackedLayout, StridedLayout
from ebft.method.losses import LossTerms, counted_tokens, ebft_loss
from ebft.method.rewards import (
    conditional_feature_matching_loss,
    feature_matching_rewards,
    leave_one_out_advantages,
    token_groups,
    truth_groups,
)
from ebft.method.sampling import sequence_seeds
from ebft.method.tree import Tree
from ebft.model.attention import ask, rounded_up
from ebft.model.backbone import output_head, packed_hidden_states
from ebft.model.features import FeatureNetwork
from ebft.model.rollout import draw
from ebft.runtime.files import Json
from ebft.runtime.processes import sum_over_processes
from ebft.runtime.timing import Clock

Part = TypeVar("Part", "Rollouts", "Scores", OnHost)


@dataclass
class Rollouts:
    """n completions at B anchors of b sequences, before anything looks at them."""

    completions: Tensor  # [b, B, n, G]
    lengths: Tensor | None  # [b, B, n], tokens up to their end; None if nothing ends them
    entropy: Tensor  # [b, B, n, G], of the distribution that each token was drawn from
    groups: Tensor  # [b, B, n], equal completions have equal numbers

    def select(self, rows: slice | Tensor) -> Rollouts:
        chosen: Json = {k: None if v is None else v[rows] for k, v in vars(self).items()}
        return Rollouts(**chosen)


def join(parts: Sequence[Part]) -> Part:
    """What is known of one batch after the other, as of all of them at once."""
    columns = {name: [vars(part)[name] for part in parts] for name in vars(parts[0])}
    joined: Json = {k: None if v[0] is None else torch.cat(v) for k, v in columns.items()}
    return type(parts[0])(**joined)


def make_layout(
    on_host: OnHost, config: MethodConfig, samples: int, end_token_ids: Tensor | None, round_up: bool = False
) -> PackedLayout:
    """The layout of a batch under the method's settings. Shapes do not depend on the data with strided anchors.

    round_up: few different shapes also with anchors at answer starts, for code that is compiled for each of them.
    """
    documents, answers = on_host.document_ids, on_host.answer_mask
    padding = documents == PADDING
    lengths = (~padding).sum(1) if bool(padding.any()) and not config.document_masks else None
    shown = documents if config.document_masks else None
    ends = torch.zeros_like(answers) if end_token_ids is None else torch.isin(on_host.input_ids, end_token_ids)
    if config.anchors == "answer_start":
        whole = whole_answers(answers, documents, ends, config.horizon)
        targets = answers if config.answer_only else torch.ones_like(answers)
        given = (whole, config.horizon, samples, shown, lengths)
        return PackedLayout.at_answer_starts(*given, allow_empty=True, round_up=round_up, target_mask=targets)
    sizes = (config.context_length, config.horizon, config.stride, samples)
    where = (shown, answers if config.answer_only else None, lengths)
    ended = ends if config.short_truths else None
    return StridedLayout(*sizes, *where, fixed_shape=True, allow_empty=True, ends=ended)


def check_sequences(dataset: SequenceDataset, config: MethodConfig, end_token_ids: Tensor | None) -> None:
    """At least one anchor must fit somewhere in the first 2,000 rows."""
    for row in range(min(len(dataset), 2000)):
        layout = make_layout(collate([dataset[row]])["on_host"], config, config.samples, end_token_ids)
        if bool(layout.anchor_mask.any()):
            return
    answers = config.answer_only or config.anchors == "answer_start"
    what, longest = ("answer", dataset.index.answer_counts) if answers else ("document", dataset.lengths)
    sizes = f"{int(longest.max())} tokens, horizon is {config.horizon}, stride {config.stride}"
    why = f"no rollout can begin in the data: the longest {what} has {sizes}"
    raise DataError(f"{why}; use a smaller horizon or stride, or longer texts (docs/troubleshooting.md has more)")


def roll_out(
    model: nn.Module,
    input_ids: Tensor,
    layout: PackedLayout,
    seeds: Tensor,
    config: MethodConfig,
    end_token_ids: Tensor | None,
) -> tuple[Rollouts, Tensor]:
    """Rollouts, and the hidden states of their contexts [b, T, H]."""
    how = ((config.temperature, None, None), seeds, end_token_ids, config.attention_backend, config.trees)
    completions, entropy, context = draw(model, input_ids, layout, *how)
    lengths = None if end_token_ids is None else layout.completion_lengths(completions, end_token_ids)
    return Rollouts(completions, lengths, entropy, token_groups(completions)), context


# ---- what each pass over a window needs: as trees, every prefix once -------------------------------------------------


@dataclass
class Packing:
    """The sequences of a window for one pass: plain completions, or the trees of what the pass needs of them."""

    layout: PackedLayout
    tree: Tree | None = None
    nodes: list[int] = field(default_factory=list)  # of each row, as the host knows it
    predicting: list[int] = field(default_factory=list)

    def of_rows(self, rows: Sequence[int], index: slice | Tensor) -> PackedLayout:
        """The layout of some rows; `index` says the same to the device."""
        layout = self.layout
        if self.tree is None:
            return layout.select_rows(index)
        nodes, predicting = max(self.nodes[row] for row in rows), sum(self.predicting[row] for row in rows)
        if layout.device.type == "cuda":
            every_node = layout.num_anchors * layout.samples * layout.horizon
            nodes = rounded_up(nodes, every_node)
            predicting = rounded_up(predicting, len(rows) * every_node)
        return layout.select_rows(index).with_tree(self.tree.select(index), nodes, predicting)

    def computed(self, sequences: int) -> tuple[int, int]:
        """Tokens that go through the layers, and rows that predict completions, where so many rows hold a text."""
        of = self.layout
        if self.tree is not None:
            return sequences * of.context_length + sum(self.nodes), sum(self.predicting)
        return sequences * of.packed_length, sequences * of.num_anchors * (1 + of.samples * (of.horizon - 1))


def packings(
    layout: PackedLayout, input_ids: Tensor, rollouts: Rollouts, config: MethodConfig, update: bool = True
) -> list[Packing]:
    """For the frozen network, and for the update. Asks the device how large the trees are: once for both."""
    if not config.trees:
        return [Packing(layout)] * (1 + update)
    trees = [layout.tree_of(rollouts.completions, input_ids, rollouts.lengths)]
    if update:
        # The last token predicts nothing.
        of_all = torch.full_like(rollouts.groups, layout.horizon)
        needed = (of_all if rollouts.lengths is None else rollouts.lengths) - 1
        # Where all completions are equal, from three samples on, all advantages are 0. A divergence is there all the
        # same.
        if layout.samples >= 3 and not config.kl_weight:
            needed = torch.where((rollouts.groups == 0).all(-1, keepdim=True), -1, needed)
        trees.append(layout.tree_of(rollouts.completions, input_ids, needed))
    counts = iter(ask([count for tree in trees for count in (tree.counts, tree.predicting)]))
    return [Packing(layout, tree, next(counts), next(counts)) for tree in trees]


def pack_to_score(layout: PackedLayout, input_ids: Tensor, rollouts: Rollouts, config: MethodConfig) -> PackedLayout:
    """The layout to look at rollouts with, where no update follows."""
    (packing,) = packings(layout, input_ids, rollouts, config, update=False)
    return packing.of_rows(range(len(input_ids)), slice(None))


# ---- a window --------------------------------------------------------------------------------------------------------


@dataclass
class Scores:
    """What the frozen network says about rollouts."""

    alignment: Tensor  # [b, B, n]
    diversity: Tensor  # [b, B, n]
    cfm: Tensor | None  # [b, B], the unbiased feature-matching loss of every context; None for a single sample


def score(
    features: FeatureNetwork,
    input_ids: Tensor,
    layout: PackedLayout,
    rollouts: Rollouts,
    config: MethodConfig,
    clock: Clock | None = None,
) -> Scores:
    """Look at rollouts with the frozen network, and compute both terms of the reward."""
    clock = clock or Clock(input_ids.device)
    with clock.phase("features"):
        generated, truth = features(layout.pack(input_ids, rollouts.completions), layout, rollouts.lengths)
    with clock.phase("rewards"):
        completions = rollouts.completions
        if rollouts.lengths is not None:  # a sample is the truth if the two agree up to their own ends
            steps = torch.arange(layout.horizon, device=completions.device)
            completions = torch.where(steps < rollouts.lengths[..., None], completions, -2)
        truth_group = truth_groups(completions, layout.truths(input_ids), rollouts.groups)
        terms = feature_matching_rewards(generated, truth, config.whitening, rollouts.groups, truth_group)
        cfm = conditional_feature_matching_loss(generated, truth) if layout.samples > 1 else None
    return Scores(*terms, cfm)


@dataclass
class Window:
    """What one process computes the loss of; counts and metrics are those of all processes together."""

    micro_batches: list[Batch]
    totals: dict[str, Tensor]  # of `_counts` and `_metric_sums`
    metrics: dict[str, Tensor]
    example: dict[str, Tensor]  # the first sequence, for the table of samples
    loss_sums: dict[str, Tensor] = field(default_factory=dict)  # over the micro-batches so far, of this process

    def add(self, name: str, value: Tensor) -> None:
        """Add a micro-batch's part of a sum over the window."""
        self.loss_sums[name] = self.loss_sums[name] + value.detach() if name in self.loss_sums else value.detach()


def prepare_window(
    model: nn.Module,
    features: FeatureNetwork,
    batches: list[Batch],
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
    clock = clock or Clock(device)
    seeds = sequence_seeds(config.seed, step, torch.cat([batch["sequence_id"] for batch in batches]))
    on_host = join([batch["on_host"] for batch in batches])
    layout = make_layout(on_host, config, config.samples, end_token_ids, round_up=device.type == "cuda").to(device)
    at_once = config.rollout_batch_size or rows
    parts = [slice(start, min(start + at_once, rows)) for start in range(0, rows, at_once)]
    roll = partial(roll_out, model, config=config, end_token_ids=end_token_ids)
    with clock.phase("rollout"):
        rollouts = join([roll(input_ids[at], layout.select_rows(at), seeds[at])[0] for at in parts])
    with clock.phase("features"):
        to_score, to_train = packings(layout, input_ids, rollouts, config)
        packed = [to_score.of_rows(range(rows)[at], at) for at in parts]
    of_parts = zip(parts, packed, strict=True)
    look = partial(score, features, config=config, clock=clock)
    scores = join([look(input_ids[at], layout_at, rollouts=rollouts.select(at)) for at, layout_at in of_parts])
    advantages = leave_one_out_advantages(scores.alignment, scores.diversity, config.alpha)
    sums = _metric_sums(rollouts, scores, layout, config.alpha)
    totals = sum_over_processes(_counts(on_host, layout, rollouts, to_score, to_train) | sums)
    contexts, generated = (totals[name].clamp(min=1) for name in ("contexts", "generated_tokens"))
    metrics = {name: totals[name] / contexts for name in sums}
    metrics["entropy"] = totals["entropy"] / generated
    metrics["ebft/anchors"] = totals["contexts"] / totals["sequences"]
    metrics["ebft/packed_tokens"] = totals["packed_tokens"]
    metrics["ebft/shared"] = 1 - totals["nodes"] / generated
    shown = {"input_ids": input_ids, "completions": rollouts.completions, "advantages": advantages}
    shown |= {"alignment": scores.alignment, "diversity": scores.diversity}
    shown |= {name: getattr(layout, name).expand(rows, -1) for name in ("anchors", "anchor_mask", "truth_lengths")}
    sizes = [len(batch["input_ids"]) for batch in batches]
    of_window = {name: totals[name] for name in ("generated_tokens", "truth_tokens")}
    parts_to_train = micro_batches(sizes, input_ids, rollouts, to_train, advantages)
    example = {name: values[0] for name, values in shown.items()}
    return Window([batch | of_window for batch in parts_to_train], totals, metrics, example)


def _counts(
    on_host: OnHost, layout: PackedLayout, rollouts: Rollouts, to_score: Packing, to_train: Packing
) -> dict[str, Tensor]:
    """Of this process's part of the window; `tokens` without padding, `scored_tokens` and `trained_tokens` as they go
    through the layers, `trained_rows` with logits. What the host knows is not asked of the device."""
    rows, device = rollouts.completions.shape[0], rollouts.completions.device
    real = on_host.document_ids != PADDING
    sequences = int(real.any(1).sum())  # rows that only fill up a process's part hold no token
    known = {"sequences": sequences, "tokens": int(real.sum()), "packed_tokens": sequences * layout.packed_length}
    known["scored_tokens"], _ = to_score.computed(sequences)
    known["trained_tokens"], known["trained_rows"] = to_train.computed(sequences)
    counted = counted_tokens(layout, rows, rollouts.lengths)
    generated = counted.sum()
    return {
        "generated_tokens": generated,
        "nodes": to_score.tree.counts.sum() if to_score.tree is not None else generated,
        "entropy": torch.where(counted, rollouts.entropy, 0.0).sum(),
        "truth_tokens": layout.truth_mask.expand(rows, -1)[:, 1:].sum(),
        "contexts": layout.anchor_mask.expand(rows, -1).sum(),
        **{name: torch.full((), count, device=device) for name, count in known.items()},
    }


def _metric_sums(rollouts: Rollouts, scores: Scores, layout: PackedLayout, alpha: float) -> dict[str, Tensor]:
    """Sums over the anchors that count, as tensors: nothing waits for the device here. Logged as means over anchors."""
    reward = scores.alignment - alpha * scores.diversity
    per_context = {
        "reward": reward.mean(-1),
        "reward_std": reward.std(-1) if layout.samples > 1 else torch.zeros_like(reward[..., 0]),
        "ebft/alignment": scores.alignment.mean(-1),
        "ebft/diversity": scores.diversity.mean(-1),
        "ebft/distinct": distinct_share(rollouts.groups),
    }
    if scores.cfm is not None:
        per_context["ebft/cfm"] = scores.cfm
    valid = layout.anchor_mask.expand(len(reward), -1)  # [b, B]
    return {name: torch.where(valid, values, 0.0).sum() for name, values in per_context.items()}


def distinct_share(groups: Tensor) -> Tensor:
    """Distinct completions among the n of each anchor, divided by n: [b, B, n] -> [b, B]."""
    n = groups.shape[-1]
    return (groups == torch.arange(n, device=groups.device)).sum(-1) / n


def micro_batches(
    sizes: Sequence[int], input_ids: Tensor, rollouts: Rollouts, packing: Packing, advantages: Tensor
) -> Iterator[Batch]:
    """The rows of a window in parts of these sizes; those with trees of about one size go together."""
    order = list(range(input_ids.shape[0]))
    by_size: Tensor | None = None
    if packing.tree is not None:  # two stable sorts of the same numbers, since the device need not be told the order
        order.sort(key=packing.nodes.__getitem__)
        by_size = packing.tree.counts.sort(stable=True).indices
    start = 0
    for size in sizes:
        at = slice(start, start + size)
        start = at.stop
        index = at if by_size is None else by_size[at]
        layout, chosen = packing.of_rows(order[at], index), rollouts.select(index)
        yield {
            "input_ids": layout.pack(input_ids[index], chosen.completions),
            "layout": layout,
            "advantages": advantages[index],
            "completion_lengths": chosen.lengths,
        }


# The frozen model of the KL term, and a context to run it in.
Frozen = Callable[[], tuple[nn.Module, AbstractContextManager[object]]]


def loss_of(model: nn.Module, batch: Batch, config: MethodConfig, frozen: Frozen | None = None) -> LossTerms:
    """The loss of a micro-batch as `Window` holds them. frozen: needed with kl_weight."""
    packed_ids, layout = batch["input_ids"], batch["layout"]
    given = (packed_ids, layout, config.attention_backend, False)
    hidden, reference = packed_hidden_states(model, *given), None
    if config.kl_weight:
        assert frozen is not None
        other, context = frozen()
        with torch.no_grad(), context:
            reference = Reference(packed_hidden_states(other, *given), output_head(other))
    known = {name: batch[name] for name in ("advantages", "completion_lengths", "generated_tokens", "truth_tokens")}
    weights = {name: getattr(config, name) for name in ("temperature", "gamma", "kl_weight")}
    return ebft_loss(hidden, output_head(model), packed_ids, layout, reference=reference, **known, **weights)
