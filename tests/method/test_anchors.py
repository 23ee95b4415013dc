"""Documents, padding, answers and truth lengths against plain loops."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ebft.method import anchors

T = 9
flags = st.lists(st.booleans(), min_size=T, max_size=T)
rows_of_flags = st.lists(flags, min_size=1, max_size=3)
rows_of_ids = st.lists(st.lists(st.integers(-1, 2), min_size=T, max_size=T), min_size=1, max_size=3)


def documents_by_loop(ids: list[int], padding: list[bool]) -> list[int]:
    """A new number whenever the id changes; every padding token is a document of its own."""
    numbers = [0]
    for t in range(1, len(ids)):
        same = ids[t] == ids[t - 1] and not padding[t] and not padding[t - 1]
        numbers.append(numbers[-1] if same else numbers[-1] + 1)
    return numbers


@settings(max_examples=100, deadline=None)
@given(rows_of_ids, st.booleans(), st.data())
def test_documents_and_padding_equal_loops(ids: list[list[int]], with_lengths: bool, data: st.DataObject) -> None:
    lengths = [data.draw(st.integers(0, T)) if with_lengths else T for _ in ids]
    found, padding = anchors.documents_and_padding(
        len(ids), T, torch.tensor(ids), torch.tensor(lengths) if with_lengths else None
    )
    for row, own in enumerate(ids):
        expected = [t >= lengths[row] or own[t] < 0 for t in range(T)]
        assert padding[row].tolist() == expected
        assert found[row].tolist() == documents_by_loop(own, expected)


def test_without_documents_a_row_is_one_document() -> None:
    documents, padding = anchors.documents_and_padding(2, 4, None, torch.tensor([4, 1]))
    assert documents.tolist() == [[0] * 4] * 2
    assert padding.tolist() == [[False] * 4, [False, True, True, True]]


@settings(max_examples=100, deadline=None)
@given(rows_of_ids)
def test_starts_and_beginnings_of_documents_equal_loops(ids: list[list[int]]) -> None:
    documents = torch.tensor(ids)
    starts, begins = anchors.document_starts(documents), anchors.document_begin(documents)
    for row, own in enumerate(ids):
        for t in range(T):
            begin = t
            while begin and own[begin - 1] == own[t]:
                begin -= 1
            assert bool(starts[row, t]) == (begin == t)
            assert int(begins[row, t]) == begin


@settings(max_examples=200, deadline=None)
@given(rows_of_flags, st.data())
def test_truth_lengths_equal_loops(starts: list[list[bool]], data: st.DataObject) -> None:
    unusable = [data.draw(flags) for _ in starts]
    found = anchors.truth_lengths(torch.tensor(starts), torch.tensor(unusable))
    for row in range(len(starts)):
        for t in range(T):
            length = 0
            while t + length < T and not unusable[row][t + length] and not (length and starts[row][t + length]):
                length += 1
            assert int(found[row, t]) == length


@settings(max_examples=200, deadline=None)
@given(rows_of_flags, st.booleans(), st.data())
def test_answer_starts_equal_loops(answers: list[list[bool]], round_up: bool, data: st.DataObject) -> None:
    documents = [sorted(data.draw(st.lists(st.integers(0, 2), min_size=T, max_size=T))) for _ in answers]
    expected = []
    for own, numbers in zip(answers, documents, strict=True):
        expected.append(
            [t for t in range(1, T) if own[t] and (not own[t - 1] or numbers[t] != numbers[t - 1])]  # 0 has no context
        )
    places = max(1, *map(len, expected))
    if round_up:
        places = next(power for power in (1, 2, 4, 8) if power >= places)
    found = anchors.answer_starts(torch.tensor(answers), torch.tensor(documents), round_up)
    assert found.tolist() == [own + [0] * (places - len(own)) for own in expected]


@settings(max_examples=400, deadline=None)
@given(rows_of_flags, st.integers(1, 4), st.data())
def test_whole_answers_equal_loops(answers: list[list[bool]], horizon: int, data: st.DataObject) -> None:
    documents = [sorted(data.draw(st.lists(st.integers(0, 2), min_size=T, max_size=T))) for _ in answers]
    ends = [data.draw(flags) for _ in answers]
    found = anchors.whole_answers(torch.tensor(answers), torch.tensor(documents), torch.tensor(ends), horizon)
    for row, (own, numbers, own_ends) in enumerate(zip(answers, documents, ends, strict=True)):
        expected = [False] * T
        for first in range(1, T):
            if not own[first] or own[first - 1] or numbers[first] != numbers[first - 1]:
                continue
            stop = first + 1
            while stop < T and own[stop] and numbers[stop] == numbers[first] and not own_ends[stop - 1]:
                stop += 1
            if stop < T or own_ends[stop - 1] or stop - first >= horizon:
                expected[first:stop] = [True] * (stop - first)
        assert found[row].tolist() == expected


def some(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.long)


def test_common_batch_size() -> None:
    def size(**given: Tensor) -> int | None:
        names = ("anchors", "document_ids", "answer_mask", "lengths", "target_mask")
        return anchors.common_batch_size(T, *(given.get(name) for name in names))

    assert size() is None
    assert size(anchors=some(3), document_ids=some(T)) is None, "one dimension: the same for every row"
    assert size(anchors=some(3), document_ids=some(2, T)) == 2
    assert size(lengths=some(4), answer_mask=some(4, T)) == 4
    for wrong, message in (
        ({"lengths": some(2, 1)}, "lengths must have 1 dimension"),
        ({"document_ids": some(1, 1, T)}, "document_ids must have 1 or 2 dimensions, not 3"),
        ({"answer_mask": some(2, T + 1)}, f"answer_mask has {T + 1} entries per sequence, context_length is {T}"),
        ({"target_mask": some(2, T), "answer_mask": some(3, T)}, "answer_mask has 3 rows, target_mask has 2 rows"),
        ({"document_ids": some(2, T), "lengths": some(3)}, "batch sizes differ: lengths has 3 rows, document_ids has"),
    ):
        with pytest.raises(ValueError, match=message):
            size(**wrong)


@pytest.mark.parametrize("value", [0, -1, True, 2.0, "2"])
def test_at_least_one(value: object) -> None:
    assert anchors.at_least_one("stride", 3) == 3
    with pytest.raises(ValueError, match=f"stride={value!r} must be a whole number"):
        anchors.at_least_one("stride", value)  # type: ignore[arg-type]


def test_why_there_is_no_anchor() -> None:
    assert "at the very start or past the end" in anchors.why_no_anchor(None, None, None)
    found = anchors.why_no_anchor(some(T), None, some(1))
    assert "crosses a document boundary" in found
    assert "the sequences are too short" in found
    assert "inside an answer" not in found
