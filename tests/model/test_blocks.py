"""The ranges of blocks against the mask rule itself, evaluated for every pair of tokens."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ebft.method.layout import PackedLayout, StridedLayout
from ebft.model import blocks, flex
from ebft.model.blocks import classify_blocks, ordered


def by_block(dense: Tensor, size: int) -> Tensor:
    """[rows, Q, K] -> [rows, q, k, size, size], False beyond the ends."""
    rows, Q, K = dense.shape
    padded = torch.zeros(rows, -(-Q // size) * size, -(-K // size) * size, dtype=torch.bool)
    padded[:, :Q, :K] = dense
    return padded.unflatten(2, (-1, size)).unflatten(1, (-1, size)).transpose(2, 3)


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


@settings(max_examples=150, deadline=None)
@given(cases())
def test_no_allowed_pair_is_skipped_and_whole_blocks_are_whole(case: tuple[PackedLayout, int | None, int]) -> None:
    layout, window, size = case
    everything = torch.arange(layout.packed_length)
    step = everything[layout.context_length :: layout.horizon]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK", size)
        for queries, keys in (
            (everything, layout.packed_length),
            (everything[: layout.context_length], layout.context_length),
            (step, layout.context_length),
        ):
            found = classify_blocks(layout, queries, keys, window)
            truth = by_block(dense_mask(layout, queries, keys, window), size)
            assert not (found.partial & found.whole).any()
            assert bool(((found.partial | found.whole) | ~truth.any((-1, -2))).all())
            assert bool((truth.all((-1, -2)) | ~found.whole).all())


@pytest.mark.parametrize("T", [256, 300])
def test_without_documents_nothing_is_called_partial_in_vain(T: int) -> None:
    layout = StridedLayout(T, 8, 8, 4)
    found = classify_blocks(layout, torch.arange(layout.packed_length), layout.packed_length)
    truth = by_block(dense_mask(layout, torch.arange(layout.packed_length), layout.packed_length, None), blocks.BLOCK)
    assert torch.equal(found.partial | found.whole, truth.any((-1, -2)))
    assert torch.equal(found.whole, truth.all((-1, -2)))


def test_long_completions_have_whole_blocks_of_their_own() -> None:
    layout = PackedLayout(256, 512, 1, torch.tensor([256 - 128]))
    found = classify_blocks(layout, torch.arange(layout.packed_length), layout.packed_length)
    assert bool(found.whole[0, 5, 2:5].all())  # queries 640..767 of the completion that begins at 256
    assert not bool(found.whole[0, 5, 5])  # causal on the diagonal
    assert not bool((found.whole | found.partial)[0, 5, 1])  # the truth after the anchor


def test_ordered_lists_the_chosen_blocks_first() -> None:
    chosen = torch.tensor([[[False, True, False, True], [False, False, False, False]]])
    counts, order = ordered(chosen)
    assert counts.tolist() == [[[2, 0]]]
    assert order[0, 0, 0, :2].tolist() == [1, 3]
    assert sorted(order[0, 0, 1].tolist()) == [0, 1, 2, 3]


@settings(max_examples=100, deadline=None)
@given(cases(), st.integers(0, 5))
def test_the_masks_of_the_kernels_are_the_rule(case: tuple[PackedLayout, int | None, int], step: int) -> None:
    layout, window, _ = case
    T, S, step = layout.context_length, layout.packed_length, min(step, layout.horizon - 1)
    everything = torch.arange(S)
    of_step = everything[T + step :: layout.horizon]
    for mask, queries, keys in (
        (flex.packed_mask(layout, window), everything, S),
        (flex.context_mask(layout, window), everything[:T], T),
        (flex.step_mask(layout, window, step), of_step, T),
    ):
        assert mask.shape[-2:] == (len(queries), keys)
        rows, places = layout.mask_rows[:, None, None], torch.arange(len(queries))[:, None]
        found = mask.mask_mod(rows, torch.tensor(0), places, torch.arange(keys))
        assert torch.equal(found, dense_mask(layout, queries, keys, window))


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize(("step", "room"), [(0, 1), (5, 6), (7, 8), (9, 16), (20, 39)])
def test_context_and_own_tokens_merge_to_one_softmax(
    step: int, room: int, window: int | None, softcap: float | None
) -> None:
    b, kv, repeat, B, n, d, T = 2, 2, 3, 2, 2, 5, 11
    generator = torch.Generator().manual_seed(step)
    q = torch.randn(b, kv * repeat, B * n, d, generator=generator)
    context_k, context_v = torch.randn(2, b, kv, T, d, generator=generator)
    own_k, own_v = torch.randn(2, b, kv, B, n, room, d, generator=generator)  # later tokens must not count

    def score(products: Tensor) -> Tensor:
        return products * 0.3 if softcap is None else softcap * torch.tanh(products * 0.3 / softcap)

    expected = torch.empty_like(q)
    from_context, lse = torch.empty_like(q), torch.empty(b, kv * repeat, B * n)
    for row, head, query in itertools.product(range(b), range(kv * repeat), range(B * n)):
        group, first = head // repeat, max(0, step + 1 - (window or step + 1))
        mine = own_k[row, group].flatten(0, 1)[query, first : step + 1]
        values = own_v[row, group].flatten(0, 1)[query, first : step + 1]
        on_context = score(context_k[row, group] @ q[row, head, query])
        lse[row, head, query] = on_context.logsumexp(0)
        from_context[row, head, query] = on_context.softmax(0) @ context_v[row, group]
        weights = torch.cat([on_context, score(mine @ q[row, head, query])]).softmax(0)
        expected[row, head, query] = weights @ torch.cat([context_v[row, group], values])
    found = flex._merge_own(q, from_context, lse, own_k, own_v, torch.tensor(step), 0.3, window, softcap)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
