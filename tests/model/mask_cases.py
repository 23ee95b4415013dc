"""Random layouts, and the mask rule evaluated for every pair of tokens."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

from ebft.method.layout import PackedLayout, StridedLayout


def dense_mask(layout: PackedLayout, queries: Tensor, keys: int, window: int | None) -> Tensor:
    return layout.allowed(layout.mask_rows[:, None, None], queries[:, None], torch.arange(keys), window)


@st.composite
def cases(draw: st.DrawFn) -> tuple[PackedLayout, int | None, int]:
    T, G = draw(st.integers(6, 40)), draw(st.integers(1, 6))
    stride, n = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    documents = None
    if draw(st.booleans()):
        rows = draw(st.integers(1, 3))
        lengths = [draw(st.lists(st.integers(1, T), min_size=1, max_size=4)) for _ in range(rows)]
        documents = torch.full((rows, T), -1)
        for row, parts in enumerate(lengths):
            at = 0
            for number, part in enumerate(parts):
                documents[row, at : at + part] = number
                at += part
    layout = StridedLayout(T, min(G, T - stride), stride, n, document_ids=documents, fixed_shape=True, allow_empty=True)
    return layout, draw(st.none() | st.integers(1, T)), draw(st.sampled_from([2, 4, 8]))
