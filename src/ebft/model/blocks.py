"""Which blocks of the attention matrix are empty, partly allowed or wholly allowed, from minima and maxima.

FlexAttention skips empty blocks and asks the mask rule only inside partial ones. Evaluating the rule for every pair of
tokens to find out would grow with the square of the packed length. Here a block of queries and a block of keys are
each described by the range of what the rule compares (context seen, end of a subtree, document, position), and the
ranges decide. They err on the safe side: a block called partial may turn out empty, one called whole is whole.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ebft.method.layout import PackedLayout


@dataclass(frozen=True)
class Blocks:
    partial: Tensor  # bool [rows, blocks of queries, blocks of keys]
    whole: Tensor  # bool, the same; no block is both


def classify_blocks(layout: PackedLayout, queries: Tensor, keys: int, window: int | None, size: int) -> Blocks:
    """The blocks of size x size between the packed tokens `queries` [Q] and the first `keys`, which are at least T."""
    T = layout.context_length
    rows = slice(0, 1) if layout.rows_alike else slice(None)

    def ranges(values: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Lowest and highest in every block of queries [rows, blocks, 1] and of keys [rows, 1, blocks]."""
        low_q, high_q = _range(values[:, queries], size)
        low_k, high_k = _range(values[:, :keys], size)
        return low_q[..., None], high_q[..., None], low_k[:, None], high_k[:, None]

    seen_low, seen_high, _, _ = ranges(layout.visible_context[rows])
    first_key = (torch.arange(-(-keys // size), device=layout.device) * size)[None, None]
    last_key = first_key + size - 1
    of_context = (first_key < T) & (first_key < seen_high)
    whole = (last_key < T) & (last_key < seen_low)

    # Among completions: ancestors of the query, k <= q < end[k]. Context tokens are nobody's, their end is 0.
    first_query, last_query = (x[..., None] for x in _range(queries[None], size))
    _, _, end_low, end_high = ranges(layout.subtree_end[rows])
    own = (first_key <= last_query) & (first_query < end_high)
    possible = of_context | own
    whole = whole | ((last_key <= first_query) & (last_query < end_low))

    if layout.packed_documents is not None:
        low_q, high_q, low_k, high_k = ranges(layout.packed_documents[rows])
        possible = possible & (low_q <= high_k) & (low_k <= high_q)
        whole = whole & (low_q == high_q) & (low_k == high_k) & (low_q == low_k)
    if window is not None:
        low_q, high_q, low_k, high_k = ranges(layout.row_positions[rows])
        possible = possible & (low_q - high_k < window)
        whole = whole & (high_q - low_k < window)
    # Blocks that stick out over the end are never whole: the kernel has to look at every entry.
    inside_q = torch.arange(1, -(-queries.shape[0] // size) + 1, device=layout.device) * size <= queries.shape[0]
    inside_k = last_key < keys
    whole = whole & inside_q[None, :, None] & inside_k & possible
    return Blocks(possible & ~whole, whole)


def _range(values: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Lowest and highest entry of every block of the last dimension, [rows, tokens] -> two of [rows, blocks]."""
    missing = -values.shape[-1] % size
    if missing:
        last = values[..., -1:].expand(*values.shape[:-1], missing)
        values = torch.cat([values, last], -1)
    blocks = values.unflatten(-1, (-1, size))
    return blocks.amin(-1), blocks.amax(-1)


def ordered(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks of keys every block of queries has, and their numbers first, as FlexAttention wants them."""
    order = torch.argsort(chosen.to(torch.uint8), dim=-1, descending=True, stable=True)
    return chosen.sum(-1, dtype=torch.int32)[:, None].contiguous(), order.to(torch.int32)[:, None].contiguous()
