"""The ranges of blocks against the mask rule itself, evaluated for every pair of tokens."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from ebft.method.layout import PackedLayout, StridedLayout
from ebft.model.flex import classify_blocks, ordered
from tests.model.mask_cases import cases, dense_mask


def by_block(dense: Tensor, size: int) -> Tensor:
    """[rows, Q, K] -> [rows, q, k, size, size], False beyond the ends."""
    rows, Q, K = dense.shape
    padded = torch.zeros(rows, -(-Q // size) * size, -(-K // size) * size, dtype=torch.bool)
    padded[:, :Q, :K] = dense
    return padded.unflatten(2, (-1, size)).unflatten(1, (-1, size)).transpose(2, 3)


@settings(max_examples=150, deadline=None)
@given(cases())
def test_no_allowed_pair_is_skipped_and_whole_blocks_are_whole(case: tuple[PackedLayout, int | None, int]) -> None:
    layout, window, size = case
    everything = torch.arange(layout.packed_length)
    step = everything[layout.context_length :: layout.horizon]
    for queries, keys in (
        (everything, layout.packed_length),
        (everything[: layout.context_length], layout.context_length),
        (step, layout.context_length),
    ):
        found = classify_blocks(layout, queries, keys, window, size)
        truth = by_block(dense_mask(layout, queries, keys, window), size)
        assert not (found.partial & found.whole).any()
        assert bool(((found.partial | found.whole) | ~truth.any((-1, -2))).all())
        assert bool((truth.all((-1, -2)) | ~found.whole).all())


@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("T", [256, 300])
def test_without_documents_nothing_is_called_partial_in_vain(T: int, size: int) -> None:
    layout = StridedLayout(T, 8, 8, 4)
    everything, S = torch.arange(layout.packed_length), layout.packed_length
    found = classify_blocks(layout, everything, S, None, size)
    truth = by_block(dense_mask(layout, everything, S, None), size)
    assert torch.equal(found.partial | found.whole, truth.any((-1, -2)))
    assert torch.equal(found.whole, truth.all((-1, -2)))


def test_long_completions_have_whole_blocks_of_their_own() -> None:
    layout = PackedLayout(256, 512, 1, torch.tensor([256 - 128]))
    found = classify_blocks(layout, torch.arange(layout.packed_length), layout.packed_length, None, 128)
    assert bool(found.whole[0, 5, 2:5].all())  # queries 640..767 of the completion that begins at 256
    assert not bool(found.whole[0, 5, 5])  # causal on the diagonal
    assert not bool((found.whole | found.partial)[0, 5, 1])  # the truth after the anchor


def test_ordered_lists_the_chosen_blocks_first() -> None:
    chosen = torch.tensor([[[False, True, False, True], [False, False, False, False]]])
    counts, order = ordered(chosen)
    assert counts.tolist() == [[[2, 0]]]
    assert order[0, 0, 0, :2].tolist() == [1, 3]
    assert sorted(order[0, 0, 1].tolist()) == [0, 1, 2, 3]
