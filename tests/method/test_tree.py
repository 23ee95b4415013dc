"""Trees of completions against sets of prefixes, counted and compared one by one."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ebft.method.layout import PackedLayout, StridedLayout

T, G, S = 14, 3, 4


@st.composite
def batches(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, PackedLayout]:
    """Contexts, completions, how much of each to hold, and their layout. Few tokens, so that many agree."""
    n, b = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    documents = torch.tensor([[0] * 6 + [1] * 8, [0] * 13 + [-1]])[:b] if draw(st.booleans()) else None
    layout = StridedLayout(T, G, S if draw(st.booleans()) else 2, n, document_ids=documents, fixed_shape=True)
    tokens = st.integers(0, draw(st.integers(0, 2)))
    shape = (b, layout.num_anchors, n, G)
    numbers = draw(st.lists(tokens, min_size=b * layout.num_anchors * n * G, max_size=b * layout.num_anchors * n * G))
    completions = torch.tensor(numbers).view(shape)
    ids = torch.tensor(draw(st.lists(tokens, min_size=b * T, max_size=b * T))).view(b, T)
    # A prefix that two completions share ends for both or for none, as it does with end tokens.
    end = draw(st.integers(-1, 2))
    held = torch.tensor(
        [[[c.index(end) + 1 if end in c else G for c in a] for a in row] for row in completions.tolist()]
    )
    held = held - draw(st.integers(0, 1))
    left_out = torch.tensor(draw(st.lists(st.booleans(), min_size=b * n, max_size=b * n))).view(b, 1, n)
    return ids, completions, torch.where(left_out, -1, held), layout


@settings(max_examples=60, deadline=None)
@given(batch=batches(), with_truth=st.booleans())
def test_a_tree_holds_every_prefix_once(batch: tuple[Tensor, Tensor, Tensor, PackedLayout], with_truth: bool) -> None:
    ids, completions, held, layout = batch
    tree = layout.as_tree(completions, ids if with_truth else None, held)
    packed, mask = tree.pack(ids, completions), tree.attention_mask()
    b, B, n, _ = completions.shape
    anchors, valid = layout.anchors.expand(b, B).tolist(), layout.anchor_mask.expand(b, B).tolist()
    documents = layout.packed_documents
    assert tree.packed_length == packed.shape[1] == mask.shape[1]
    largest, all_predicting, real = 0, 0, torch.zeros(b, tree.packed_length, dtype=torch.bool)
    for row in range(b):
        nodes, predicting = set(), set()
        for place in range(B):
            slot_of: dict[tuple[int, ...], int] = {}
            a = anchors[row][place]
            for sample in range(n):
                tokens = completions[row, place, sample].tolist()
                count = int(held[row, place, sample]) if valid[row][place] else -1
                slots = tree.completion_slots[row, place, sample].tolist()
                assert tree.predicted[row, place, sample].tolist() == [step <= count for step in range(G)]
                predicting |= {(place, tuple(tokens[:step])) for step in range(G) if step <= count}
                truth = ids[row, a : a + G].tolist()
                for step in range(max(count, 0)):
                    prefix = tuple(tokens[: step + 1])
                    assert slot_of.setdefault(prefix, slots[step]) == slots[step], "one prefix, one slot"
                    assert int(packed[row, slots[step]]) == tokens[step]
                    if with_truth and list(prefix) == truth[: step + 1]:
                        assert slots[step] == a + step, "the context holds it"
                    else:
                        assert slots[step] >= T
                        nodes.add(slots[step])
                        real[row, slots[step]] = True
                    first = int(layout.row_positions.expand(b, -1)[row, a - 1]) + 1
                    assert int(tree.position_ids[row, slots[step]]) == first + step
                    seen = {t for t in range(a) if documents is None or documents[row, t] == documents[row, a - 1]}
                    assert set(mask[row, slots[step]].nonzero()[:, 0].tolist()) == seen | set(slots[: step + 1])
            assert len(set(slot_of.values())) == len(slot_of), "different prefixes, different slots"
        assert nodes == set(range(T, T + len(nodes))), "no gaps"
        all_predicting += len(predicting)
        largest = max(largest, len(nodes))
    assert tree.packed_length == T + largest
    assert tree.predicting_rows == all_predicting
    # Places without a node see themselves alone, and nothing else looks at them.
    unused = ~real
    unused[:, :T] = False
    for row, slot in unused.nonzero().tolist():
        assert mask[row, slot].nonzero()[:, 0].tolist() == [slot]
        assert mask[row, :, slot].nonzero()[:, 0].tolist() == [slot]
    plain = layout.attention_mask()
    assert torch.equal(mask[:, :T, :T], plain[..., :T, :T].expand(b, -1, -1)), "contexts see what they saw"
