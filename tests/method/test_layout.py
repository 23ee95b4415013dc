"""The packed layout against plain loops, and trees of completions against sets of prefixes, compared one by one."""

import itertools
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ebft.method.layout import PackedLayout, StridedLayout

SETTINGS = settings(max_examples=50, deadline=None)


@dataclass
class Problem:
    """One random layout, in plain Python: `None` or one list per row of the batch."""

    T: int
    G: int
    n: int
    rows: int
    documents: list[list[int]] | None
    answers: list[list[bool]] | None
    lengths: list[int] | None
    shared: tuple[str, ...]  # what is given once for all rows

    def tensors(self) -> dict[str, torch.Tensor | None]:
        given = {"document_ids": self.documents, "answer_mask": self.answers, "lengths": self.lengths}
        return {
            name: None if rows is None else torch.tensor(rows[0] if name in self.shared else rows)
            for name, rows in given.items()
        }

    def padding(self, row: int, t: int) -> bool:
        if self.lengths is not None and t >= self.lengths[row]:
            return True
        return self.documents is not None and self.documents[row][t] < 0

    def same_document(self, row: int, s: int, t: int) -> bool:
        """Whether tokens s <= t belong together: no other id and no padding from one to the other."""
        if self.documents is None or s == t:
            return True
        ids = self.documents[row]
        return all(ids[i] == ids[t] and not self.padding(row, i) for i in range(s, t + 1))

    def position(self, row: int, t: int) -> int:
        return sum(self.same_document(row, s, t) for s in range(t))

    def in_answer(self, row: int, t: int) -> bool:
        return self.answers is None or self.answers[row][t]

    def truth_length(self, row: int, anchor: int) -> int:
        length = 0
        for t in range(anchor, min(anchor + self.G, self.T)):
            if self.padding(row, t) or not self.in_answer(row, t) or not self.same_document(row, anchor, t):
                break
            length += 1
        return length

    def valid(self, row: int, anchor: int, whole_truth: bool) -> bool:
        if not 1 <= anchor < self.T or not self.same_document(row, anchor - 1, anchor):
            return False
        return self.truth_length(row, anchor) >= (self.G if whole_truth else 1)

    def counts_as_truth(self, row: int, t: int) -> bool:
        begins_document = t == 0 or not self.same_document(row, t - 1, t)
        return not begins_document and not self.padding(row, t) and self.in_answer(row, t)

    def visible(self, row: int, anchors: list[int], query: int, key: int, window: int | None) -> bool:
        if window is not None:
            back = self.packed_position(row, anchors, query) - self.packed_position(row, anchors, key)
            if back >= window:
                return False
        if query < self.T:
            return key <= query and self.same_document(row, key, query)
        completion = (query - self.T) // self.G
        if key < self.T:
            anchor = anchors[completion // self.n]
            return key < anchor and self.same_document(row, key, anchor - 1)
        return key <= query and (key - self.T) // self.G == completion

    def packed_position(self, row: int, anchors: list[int], slot: int) -> int:
        if slot < self.T:
            return self.position(row, slot)
        completion, g = divmod(slot - self.T, self.G)
        return self.position(row, anchors[completion // self.n] - 1) + 1 + g


@st.composite
def runs_of_ids(draw: st.DrawFn, T: int) -> list[int]:
    ids: list[int] = []
    while len(ids) < T:
        ids += [draw(st.integers(-1, 2))] * draw(st.integers(1, T))
    return ids[:T]


@st.composite
def problems(draw: st.DrawFn, answers: bool | None = None) -> Problem:
    T, rows = draw(st.integers(2, 12)), draw(st.integers(1, 2))
    shared = draw(st.lists(st.sampled_from(["document_ids", "answer_mask"])))

    def ids(name: str) -> list[list[int]]:
        return [draw(runs_of_ids(T))] * rows if name in shared else [draw(runs_of_ids(T)) for _ in range(rows)]

    documents = ids("document_ids") if draw(st.booleans()) else None
    # Runs again, mostly answers, so that windows of several tokens fit into them.
    with_answers = draw(st.booleans()) if answers is None else answers
    flags = [[i >= 0 for i in row] for row in ids("answer_mask")] if with_answers else None
    lengths = [draw(st.integers(1, T)) for _ in range(rows)] if draw(st.booleans()) else None
    return Problem(T, draw(st.integers(1, 4)), draw(st.integers(1, 2)), rows, documents, flags, lengths, tuple(shared))


def by_row(value: torch.Tensor, layout: PackedLayout, rows: int, per_row_dims: int) -> list:
    """Python lists with a row dimension, whether or not the layout has one."""
    assert value.dim() == per_row_dims + (layout.batch_size is not None)
    return (value if layout.batch_size is not None else value[None].expand(rows, *value.shape)).tolist()


def check_against_loops(
    layout: PackedLayout, problem: Problem, anchors: list[list[int]], whole_truth: bool, window: int | None
) -> None:
    """`anchors`: those that the layout should hold, per row, dropped ones included. A layout whose rows are alike, by
    its own word, has one mask for all of them."""
    T, B, rows = problem.T, len(anchors[0]), problem.rows
    assert layout.num_anchors == B
    assert layout.packed_length == T + B * problem.n * problem.G
    valid = by_row(layout.anchor_mask, layout, rows, 1)
    truth_lengths = by_row(layout.truth_lengths, layout, rows, 1)
    truths = layout.truths(torch.arange(T).expand(rows, T)).tolist()
    truth_mask = by_row(layout.truth_mask, layout, rows, 1)
    positions = by_row(layout.position_ids, layout, rows, 1)
    mask = by_row(layout.attention_mask(window), layout, rows, 2)
    own_anchors = layout.anchors.expand(rows, B).tolist()
    for row in range(rows):
        assert truth_mask[row] == [problem.counts_as_truth(row, t) for t in range(T)]
        for b, anchor in enumerate(anchors[row]):
            assert valid[row][b] == problem.valid(row, anchor, whole_truth)
            if not valid[row][b]:
                assert truth_lengths[row][b] == 0
                continue
            length = problem.truth_length(row, anchor)
            assert own_anchors[row][b] == anchor
            assert truth_lengths[row][b] == length
            assert truths[row][b] == [anchor + g if g < length else -1 for g in range(problem.G)]
        for query in range(layout.packed_length):
            assert mask[row][query][query]  # no softmax may be empty, not even a dropped anchor's
            if query >= T and not valid[row][(query - T) // (problem.n * problem.G)]:
                continue  # what dropped anchors see does not matter
            assert positions[row][query] == problem.packed_position(row, anchors[row], query)
            # Keys of dropped anchors are never seen, so that their position does not matter.
            placed = [a if 1 <= a < T else 1 for a in anchors[row]]
            assert mask[row][query] == [
                problem.visible(row, placed, query, key, window) for key in range(layout.packed_length)
            ]


@SETTINGS
@given(
    problem=problems(),
    data=st.data(),
    whole_truth=st.booleans(),
    drop_unused=st.booleans(),
    kind=st.sampled_from(["strided", "alike", "per row"]),
    window=st.none() | st.integers(1, 8),
)
def test_anchors_equal_loops(
    problem: Problem, data: st.DataObject, whole_truth: bool, drop_unused: bool, kind: str, window: int | None
) -> None:
    T, G, n, rows = problem.T, problem.G, problem.n, problem.rows
    count, stride = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    one_row = st.lists(st.integers(-1, T + 1), min_size=count, max_size=count)
    anchors = [data.draw(one_row) for _ in range(rows)]
    if kind == "strided":
        whole_truth, anchors = True, [[b * stride for b in range(1, T + 1) if b <= (T - G) / stride]] * rows
    elif kind == "alike":
        anchors = [anchors[0]] * rows

    def build() -> PackedLayout:
        if kind == "strided":
            return StridedLayout(T, G, stride, n, fixed_shape=not drop_unused, **problem.tensors())
        chosen = torch.tensor(anchors if kind == "per row" else anchors[0])
        return PackedLayout(T, G, n, chosen, whole_truth=whole_truth, drop_unused=drop_unused, **problem.tensors())

    places = range(len(anchors[0]))
    used = [b for b in places if any(problem.valid(row, anchors[row][b], whole_truth) for row in range(rows))]
    if not used:
        with pytest.raises(ValueError, match=r"no valid anchor: .*; use a smaller horizon"):
            build()
        return
    expected = [[row[b] for b in used] for row in anchors] if drop_unused else anchors
    layout = build()
    assert kind != "strided" or layout.anchors.tolist() == expected[0], "one list for all rows"
    check_against_loops(layout, problem, expected, whole_truth, window)


@SETTINGS
@given(problem=problems(answers=True))
def test_anchors_at_answer_starts_equal_loops(problem: Problem) -> None:
    starts: list[list[int]] = [[] for _ in range(problem.rows)]
    for row, t in itertools.product(range(problem.rows), range(1, problem.T)):
        before, inside = (problem.in_answer(row, i) and not problem.padding(row, i) for i in (t - 1, t))
        if inside and not before and problem.same_document(row, t - 1, t):
            starts[row].append(t)
    arguments = problem.tensors()
    given_answers = (arguments.pop("answer_mask"), problem.G, problem.n)
    if not any(starts):
        with pytest.raises(ValueError, match="no valid anchor"):
            PackedLayout.at_answer_starts(*given_answers, **arguments)
        return
    for round_up in (False, True):
        layout = PackedLayout.at_answer_starts(*given_answers, round_up=round_up, **arguments)
        assert not round_up or layout.num_anchors in {1 << power for power in range(8)} | {problem.T}
        anchors = torch.where(layout.anchor_mask, layout.anchors, 0)  # 0: an empty place
        places = by_row(anchors, layout, problem.rows, 1)
        assert [[a for a in row if a] for row in places] == starts
        check_against_loops(layout, problem, places, False, None)


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
