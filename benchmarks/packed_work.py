"""What the passes of a packed iteration hold: tokens, pairs of tokens in attention, and rows with logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ebft.iteration import Packing
from ebft.method.layout import PackedLayout
from ebft.model.attention import ask
from packed_implementation import PackedImplementation, Rolled


@dataclass(frozen=True)
class Work:
    drawn_tokens: int
    drawn_pairs: int
    drawn_rows: int  # that tokens are drawn from
    scored_tokens: int
    scored_pairs: int
    trained_tokens: int
    trained_pairs: int
    trained_rows: int  # that predict tokens of completions
    anchors: int = 0
    equal_anchors: int = 0  # where all completions are equal

    @classmethod
    def untreed(cls, layout: PackedLayout, sequences: int) -> Work:
        tokens, pairs = sequences * layout.packed_length, sequences * int((layout.position_ids + 1).sum())
        rows = sequences * layout.num_anchors * (1 + layout.samples * (layout.horizon - 1))
        # A rollout does not run the last token of a completion; it predicts nothing.
        last = layout.completion_slots[..., -1]
        drawn = tokens - sequences * last.numel(), pairs - sequences * int((layout.position_ids + 1)[last].sum()), rows
        return cls(*drawn, tokens, pairs, tokens, pairs, rows, sequences * layout.num_anchors)


def work_of(implementation: PackedImplementation) -> Work:
    """Of the last iteration, without what only fills up a shape."""
    rolled = implementation.last
    assert rolled is not None
    b, layout = rolled.contexts.shape[0], implementation.layout
    if not implementation.method.trees:
        return Work.untreed(layout, b)
    to_score, to_train = rolled.packings
    before_last = torch.full_like(rolled.rollouts.groups, layout.horizon - 1)
    tree = layout.tree_of(rolled.rollouts.completions, rolled.contexts, before_last)
    drawn, pairs = _tokens_and_pairs(Packing(layout, tree, *ask([tree.counts, tree.predicting])), rolled)
    equal = int((rolled.rollouts.groups == 0).all(-1).sum())
    return Work(
        drawn,
        pairs,
        sum(tree.predicting.tolist()),
        *_tokens_and_pairs(to_score, rolled),
        *_tokens_and_pairs(to_train, rolled),
        sum(to_train.predicting),
        b * layout.num_anchors,
        equal,
    )


def _tokens_and_pairs(packing: Packing, rolled: Rolled) -> tuple[int, int]:
    """At position p a token sees p + 1, itself included."""
    layout = packing.of_rows(range(rolled.contexts.shape[0]), slice(None))
    counts = torch.tensor(packing.nodes, device=layout.device)[:, None]
    real = torch.arange(layout.packed_length, device=layout.device) < layout.context_length + counts
    return int(real.sum()), int(((layout.position_ids + 1) * real).sum())
