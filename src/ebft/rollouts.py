"""Rollouts under the settings of a run, and what each pass over a window needs of them: as trees, every prefix once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ebft.config.method import MethodConfig
from ebft.method.layout import PackedLayout
from ebft.method.rewards import token_groups
from ebft.method.tree import Tree
from ebft.model.attention import ask, rounded_up
from ebft.model.rollout import draw


@dataclass
class Rollouts:
    """n completions at B anchors of b sequences, before anything looks at them."""

    completions: Tensor  # [b, B, n, G]
    lengths: Tensor | None  # [b, B, n], tokens up to their end; None if nothing ends them
    entropy: Tensor  # [b, B, n, G], of the distribution that each token was drawn from
    groups: Tensor  # [b, B, n], equal completions have equal numbers

    def select(self, rows: slice | Tensor) -> Rollouts:
        chosen: dict[str, Any] = {k: None if v is None else v[rows] for k, v in vars(self).items()}
        return Rollouts(**chosen)


def roll_out(
    model: nn.Module,
    input_ids: Tensor,
    layout: PackedLayout,
    seeds: Tensor,
    config: MethodConfig,
    end_token_ids: Tensor | None,
) -> tuple[Rollouts, Tensor]:
    """Rollouts, and the hidden states of their contexts [b, T, H]."""
    sampling = (config.temperature, None, None)
    completions, entropy, context = draw(
        model, input_ids, layout, sampling, seeds, end_token_ids, config.attention_backend, config.trees
    )
    lengths = None if end_token_ids is None else layout.completion_lengths(completions, end_token_ids)
    return Rollouts(completions, lengths, entropy, token_groups(completions)), context


@dataclass
class Packing:
    """The sequences of a window for one pass: plain completions, or the trees of what the pass needs of them."""

    layout: PackedLayout
    tree: Tree | None = None
    nodes: list[int] = field(default_factory=list)  # of each row, as the host knows it
    predicting: list[int] = field(default_factory=list)

    def of_rows(self, rows: Sequence[int], index: slice | Tensor) -> PackedLayout:
        """The layout of some rows; `index` says the same to the device."""
        if self.tree is None:
            return self.layout.select_rows(index)
        layout = self.layout
        nodes, predicting = max(self.nodes[row] for row in rows), sum(self.predicting[row] for row in rows)
        if layout.device.type == "cuda":
            every_node = layout.num_anchors * layout.samples * layout.horizon
            nodes = rounded_up(nodes, every_node)
            predicting = rounded_up(predicting, len(rows) * every_node)
        return layout.select_rows(index).with_tree(self.tree.select(index), nodes, predicting)


def packings(
    layout: PackedLayout, input_ids: Tensor, rollouts: Rollouts, config: MethodConfig
) -> tuple[Packing, Packing]:
    """For the frozen network, and for the update. Asks the device how large the trees are: once for both."""
    if not config.trees:
        return Packing(layout), Packing(layout)
    # Where all completions are equal, from three samples on, all advantages are 0. A divergence is there all the same.
    leave_out_equal = layout.samples >= 3 and not config.kl_weight
    seen = layout.tree_of(rollouts.completions, input_ids, rollouts.lengths)
    # The last token predicts nothing.
    needed = (torch.full_like(rollouts.groups, layout.horizon) if rollouts.lengths is None else rollouts.lengths) - 1
    if leave_out_equal:
        needed = torch.where((rollouts.groups == 0).all(-1, keepdim=True), -1, needed)
    trained = layout.tree_of(rollouts.completions, input_ids, needed)
    counts = ask([seen.counts, seen.predicting, trained.counts, trained.predicting])
    return Packing(layout, seen, *counts[:2]), Packing(layout, trained, *counts[2:])


def pack_to_score(layout: PackedLayout, input_ids: Tensor, rollouts: Rollouts, config: MethodConfig) -> PackedLayout:
    """The layout to look at rollouts with, where no update follows."""
    if not config.trees:
        return layout
    tree = layout.tree_of(rollouts.completions, input_ids, rollouts.lengths)
    rows = range(input_ids.shape[0])
    return Packing(layout, tree, *ask([tree.counts, tree.predicting])).of_rows(rows, slice(None))
