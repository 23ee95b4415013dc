"""What each pass over the rollouts of a window needs of them, as trees: every prefix once, and none in vain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from ebft.config.method import MethodConfig
from ebft.method.layout import PackedLayout
from ebft.method.tree import Tree
from ebft.model.computed import ask, rounded_up
from ebft.model.layout_graph import replay
from ebft.rollouts import Rollouts
from ebft.runtime.graphs import Graphs

_GRAPHS = Graphs()


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
    build = partial(_trees, leave_out_equal)
    given = [input_ids, rollouts.completions, rollouts.groups]
    if rollouts.lengths is not None:
        given.append(rollouts.lengths)
    found = replay(build, _GRAPHS, layout, given, leave_out_equal) if input_ids.is_cuda else build(layout, *given)
    seen, trained = Tree(*found[: len(found) // 2]), Tree(*found[len(found) // 2 :])
    counts = ask([seen.counts, seen.predicting, trained.counts, trained.predicting])
    return Packing(layout, seen, *counts[:2]), Packing(layout, trained, *counts[2:])


def _trees(
    leave_out_equal: bool,
    layout: PackedLayout,
    input_ids: Tensor,
    completions: Tensor,
    groups: Tensor,
    lengths: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """The tensors of two trees: one of all completions, one of what predicts something with a weight."""
    seen = layout.tree_of(completions, input_ids, lengths)
    # The last token predicts nothing.
    needed = (torch.full_like(groups, layout.horizon) if lengths is None else lengths) - 1
    if leave_out_equal:
        needed = torch.where((groups == 0).all(-1, keepdim=True), -1, needed)
    trained = layout.tree_of(completions, input_ids, needed)
    return *seen.tensors, *trained.tensors


def pack_to_score(layout: PackedLayout, input_ids: Tensor, rollouts: Rollouts, config: MethodConfig) -> PackedLayout:
    """The layout to look at rollouts with, where no update follows."""
    if not config.trees:
        return layout
    tree = layout.tree_of(rollouts.completions, input_ids, rollouts.lengths)
    rows = range(input_ids.shape[0])
    return Packing(layout, tree, *ask([tree.counts, tree.predicting])).of_rows(rows, slice(None))
