"""What each pass over the rollouts of a window needs of them, as trees: every prefix once, and none in vain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ebft.config.method import MethodConfig
from ebft.method.layout import PackedLayout
from ebft.method.tree import Tree
from ebft.rollouts import Rollouts

# Packed lengths on a GPU are rounded up to a sixteenth of the longest, in whole blocks: few shapes to compile.
_SIZES, _BLOCK = 16, 128


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
        nodes = max(self.nodes[row] for row in rows)
        if self.layout.device.type == "cuda":
            longest = self.layout.packed_length - self.layout.context_length
            step = -(-longest // (_SIZES * _BLOCK)) * _BLOCK
            nodes = -(-max(nodes, 1) // step) * step
        predicting = [self.predicting[row] for row in rows]
        return self.layout.select_rows(index).with_tree(self.tree.select(index), nodes, predicting)


def packings(
    layout: PackedLayout, input_ids: Tensor, rollouts: Rollouts, config: MethodConfig
) -> tuple[Packing, Packing]:
    """For the frozen network, and for the update. Asks the device how large the trees are: once for both."""
    if not config.trees:
        return Packing(layout), Packing(layout)
    seen = layout.tree_of(rollouts.completions, input_ids, rollouts.lengths)
    # The update needs what predicts something with a weight. The last token predicts nothing, and nothing has a weight
    # where all completions are equal: from three samples on their advantages are 0. A divergence is there all the same.
    lengths = torch.full_like(rollouts.groups, layout.horizon) if rollouts.lengths is None else rollouts.lengths
    needed = lengths - 1
    if layout.samples >= 3 and not config.kl_weight:
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


def ask(counts: Sequence[Tensor]) -> list[list[int]]:
    """The device's numbers, for the host. It waits for them."""
    return torch.stack(list(counts)).tolist()
