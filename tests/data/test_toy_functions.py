"""Functions made up by rule: what they say is what they compute, and no split knows another's."""

from __future__ import annotations

import itertools
import re

from ebft.data.builtin import version
from ebft.data.rows import read_rows
from ebft.data.toy_functions import SIZES
from ebft.problems.catalog import load_problems

STEPS = {"plus": lambda x, n: x + n, "minus": lambda x, n: x - n, "times": lambda x, n: x * n}


def test_the_words_describe_the_function() -> None:
    """Computed from the words, step by step, not from the expression."""
    for row in itertools.islice(read_rows("toy-functions", "train"), 300):
        space: dict[str, object] = {}
        exec(row["prompt"] + row["completion"] + row["test"], space)
        function = space[row["entry_point"]]
        space["check"](function)  # type: ignore[operator]
        for x in (-3, 0, 11):
            expected = x
            for step, number in re.findall(r"(plus|minus|times) (\d+)", row["prompt"]):
                expected = STEPS[step](expected, int(number))
            assert function(x) == expected  # type: ignore[operator]


def test_splits_share_nothing() -> None:
    words = {split: {row["prompt"].partition('"""')[2] for row in read_rows("toy-functions", split)} for split in SIZES}
    assert {split: len(found) for split, found in words.items()} == SIZES
    for one, other in itertools.combinations(words.values(), 2):
        assert not one & other
    assert version("toy-functions", "train") != version("toy-functions", "test")


def test_they_are_problems_for_the_sandbox() -> None:
    problems = load_problems("humaneval", "toy-functions")
    assert len(problems) == SIZES["test"]
    assert problems[0].task_id == "test/0"
