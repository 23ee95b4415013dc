"""Whole answers against plain loops; test_layout has documents, padding and truth lengths."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ebft.method import anchors

T = 9
flags = st.lists(st.booleans(), min_size=T, max_size=T)
rows_of_flags = st.lists(flags, min_size=1, max_size=3)


@settings(max_examples=150, deadline=None)
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
