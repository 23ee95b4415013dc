"""The tree of an anchor's completions: prefixes that agree are one node, computed once.

Completions from one anchor agree for a while before they part. A node is a distinct prefix; it stands for token g of
every completion that begins with it. Nodes are in depth-first order, so that the descendants of node k are the nodes up
to `end[k]`, and an ancestor is told by two comparisons: k <= q < end[k].

A completion that begins like the truth needs no nodes there: the context holds those very tokens, and they see what the
nodes would see.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Tree:
    """Nodes are numbered from 0 in each row of the batch, through all its anchors in their order."""

    completions: Tensor  # [b, B, n, G], whose tree it is
    nodes: Tensor  # [b, B, n, G], the node of every token; 0 where there is none
    is_node: Tensor  # bool, the same: neither left out nor in the context
    in_context: Tensor  # [b, B, n], leading tokens that the context holds
    end: Tensor  # [b, B, n, G], one past the last descendant of the node
    predicted: Tensor  # bool [b, B, n, G], tokens that something in the sequence predicts
    counts: Tensor  # [b], nodes of each row
    predicting: Tensor  # [b], tokens of each row, nodes or context, that predict a token of a completion

    def select(self, rows: slice | Tensor) -> Tree:
        return Tree(*(tensor[rows] for tensor in vars(self).values()))


def build_tree(completions: Tensor, held: Tensor, truths: Tensor | None = None) -> Tree:
    """
    Args:
        completions: [b, B, n, G].
        held: [b, B, n], how many leading tokens of each completion to have, of which each predicts the next; with 0
            the context predicts its first token, with -1 it is left out.
        truths: [b, B, G]; completions share what they begin with. Entries below 0 agree with nothing.
    """
    G, given = completions.shape[-1], completions
    order, place = lexicographic_order(completions)
    completions, held = completions.gather(2, order[..., None].expand_as(completions)), held.gather(2, order)
    steps = torch.arange(G, device=completions.device)
    in_context = torch.zeros_like(held)
    if truths is not None:
        in_context = torch.minimum(common_prefix(completions, truths[:, :, None]).sum(-1), held.clamp(min=0))
    is_node = (steps >= in_context[..., None]) & (steps < held[..., None])

    # [b, B, n, n, G]: the second of two completions has the first one's prefix, as a node of its own or a shared one.
    shared = common_prefix(completions[:, :, :, None], completions[:, :, None]) & is_node[:, :, None]
    first = shared.to(torch.uint8).argmax(3)  # in depth-first order: whose chain of nodes holds it
    own = is_node & (first == torch.arange(first.shape[2], device=first.device)[:, None])
    numbers = own.flatten(1).cumsum(1).view_as(own) - 1
    nodes = torch.where(is_node, numbers.gather(2, first), 0)
    last = torch.where(is_node, nodes + 1, 0).amax(-1).int()  # one past the last node of each completion
    end = torch.where(shared, last[:, :, None, :, None], 0).amax(3).long()

    def in_given_order(values: Tensor) -> Tensor:
        return values.gather(2, place[..., None].expand_as(values) if values.dim() == 4 else place)

    # All that share a prefix share its prediction. A node of less than G tokens predicts; in the context the prefixes
    # from the empty one, before the anchor, up to the longest that a completion shares with the truth.
    in_contexts = torch.where(held >= 0, 1 + in_context.clamp(max=G - 1), 0).amax(-1).sum(-1)
    return Tree(
        given,
        in_given_order(nodes),
        in_given_order(is_node),
        in_given_order(in_context),
        in_given_order(end),
        in_given_order(steps <= held[..., None]),
        own.flatten(1).sum(1),
        own[..., :-1].flatten(1).sum(1) + in_contexts,
    )


def lexicographic_order(completions: Tensor) -> tuple[Tensor, Tensor]:
    """Which completion comes at every place, and the place of every completion, in the order of their tokens: what
    begins alike stands together. Both [b, B, n]."""
    n, G = completions.shape[2:]
    agree = common_prefix(completions[:, :, :, None], completions[:, :, None]).sum(-1)  # [b, B, n, n]
    parts = completions.gather(3, agree.clamp(max=G - 1))  # the token in which the first differs from the second
    index = torch.arange(n, device=completions.device)
    before = (parts < parts.transpose(2, 3)) | ((agree == G) & (index[:, None] < index))
    place = before.sum(2)
    return place.argsort(2), place


def common_prefix(one: Tensor, other: Tensor) -> Tensor:
    """bool [..., G]: whether two lists of tokens agree up to and including each token."""
    return (one == other).to(torch.uint8).cummin(-1).values.bool()
