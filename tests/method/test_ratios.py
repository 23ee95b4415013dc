"""Ratios of sums and their paired differences: by hand, against the bootstrap and the jackknife, and in simulation."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebft.method.measures import SumsAndCounts, paired_difference, ratio_of_sums, with_error

SETTINGS = settings(max_examples=100, deadline=None)


def sequences(seed: int, m: int, shift: float = 0.0, noise: float = 0.1) -> tuple[SumsAndCounts, SumsAndCounts]:
    """Two measurements of the same sequences. These differ much in length and difficulty, and longer ones are harder;
    the first measurement is higher by `shift`, and both have noise of their own."""
    draw = random.Random(seed)
    counts = [draw.choice((1, 3, 30, 127)) for _ in range(m)]
    difficulties = [1 + count / 100 + draw.gauss(0, 0.5) for count in counts]
    after, before = (
        [count * (d + s + draw.gauss(0, noise)) for count, d in zip(counts, difficulties, strict=True)]
        for s in (shift, 0.0)
    )
    return SumsAndCounts(after, counts), SumsAndCounts(before, counts)


def ratio(given: SumsAndCounts, chosen: Sequence[int]) -> float:
    return sum(given.sums[i] for i in chosen) / sum(given.counts[i] for i in chosen)


def bootstrap(statistic: Callable[[Sequence[int]], float], m: int, times: int = 2000) -> float:
    """The spread of a statistic over draws of as many sequences, with replacement."""
    draw = random.Random(0)
    return statistics.stdev(statistic(draw.choices(range(m), k=m)) for _ in range(times))


def jackknife(statistic: Callable[[Sequence[int]], float], m: int) -> float:
    left_out = [statistic([i for i in range(m) if i != out]) for out in range(m)]
    return math.sqrt((m - 1) / m * sum((x - statistics.mean(left_out)) ** 2 for x in left_out))


def test_every_token_weighs_the_same() -> None:
    assert ratio_of_sums([6.0, 10.0], [1, 127]).mean == 16 / 128


def test_the_error_of_a_ratio_agrees_with_bootstrap_and_jackknife() -> None:
    given, _ = sequences(0, 300)
    found = ratio_of_sums(*given)
    assert found.mean == pytest.approx(ratio(given, range(300)))
    assert found.standard_error == pytest.approx(bootstrap(lambda chosen: ratio(given, chosen), 300), rel=0.05)
    assert found.standard_error == pytest.approx(jackknife(lambda chosen: ratio(given, chosen), 300), rel=0.02)


def test_the_error_of_a_difference_agrees_with_bootstrap_and_jackknife() -> None:
    after, before = sequences(1, 300, shift=0.05)

    def difference(chosen: Sequence[int]) -> float:
        return ratio(after, chosen) - ratio(before, chosen)

    found = paired_difference(after, before)
    assert found.mean == pytest.approx(difference(range(300)))
    assert found.standard_error == pytest.approx(bootstrap(difference, 300), rel=0.05)
    assert found.standard_error == pytest.approx(jackknife(difference, 300), rel=0.02)
    apart = math.hypot(ratio_of_sums(*after).standard_error, ratio_of_sums(*before).standard_error)
    assert found.standard_error < apart / 3


def test_the_error_of_a_difference_agrees_with_simulation() -> None:
    found = [paired_difference(*sequences(seed, 100, shift=0.05)) for seed in range(400)]
    assert statistics.mean(e.mean for e in found) == pytest.approx(0.05, abs=0.003)
    spread = statistics.stdev(e.mean for e in found)
    assert statistics.mean(e.standard_error for e in found) == pytest.approx(spread, rel=0.12)


def test_counts_may_differ_too() -> None:
    """One side measured fewer contexts of some sequences: no t test would do."""
    after, before = sequences(2, 300)
    fewer = SumsAndCounts([s / 3 for s in before.sums], [c // 3 for c in before.counts])
    found = paired_difference(after, fewer)
    expected = bootstrap(lambda chosen: ratio(after, chosen) - ratio(fewer, chosen), 300)
    assert found.standard_error == pytest.approx(expected, rel=0.05)


VALUES = st.lists(st.tuples(st.floats(-10, 10), st.floats(-10, 10)), min_size=2, max_size=20)


@SETTINGS
@given(values=VALUES, count=st.integers(1, 50))
def test_with_equal_counts_it_is_the_paired_t(values: list[tuple[float, float]], count: int) -> None:
    counts = [count] * len(values)
    after, before = (SumsAndCounts([count * pair[side] for pair in values], counts) for side in (0, 1))
    moved = [a - b for a, b in values]
    found = paired_difference(after, before)
    assert found.mean == pytest.approx(statistics.mean(moved), abs=1e-9)
    assert found.standard_error == pytest.approx(statistics.stdev(moved) / len(moved) ** 0.5, abs=1e-9)


MEASURED = st.lists(
    st.tuples(st.floats(-10, 10), st.integers(0, 5), st.floats(-10, 10), st.integers(0, 5)), min_size=2, max_size=20
).filter(lambda rows: any(row[1] for row in rows) and any(row[3] for row in rows))


@SETTINGS
@given(rows=MEASURED)
def test_no_difference_from_oneself_and_the_opposite_the_other_way(rows: list[tuple[float, int, float, int]]) -> None:
    one = SumsAndCounts([row[0] * row[1] for row in rows], [row[1] for row in rows])
    two = SumsAndCounts([row[2] * row[3] for row in rows], [row[3] for row in rows])
    itself = paired_difference(one, one)
    assert itself.mean == 0
    several = sum(count > 0 for count in one.counts) > 1
    assert itself.standard_error == 0 if several else math.isnan(itself.standard_error)
    there, back = paired_difference(one, two), paired_difference(two, one)
    assert there.mean == -back.mean
    assert there.standard_error == pytest.approx(back.standard_error, nan_ok=True)


def test_sequences_that_count_nothing_are_no_observations() -> None:
    assert ratio_of_sums([2.0, 0.0, 4.0], [1, 0, 1]) == ratio_of_sums([2.0, 4.0], [1, 1])
    assert math.isnan(ratio_of_sums([2.0, 0.0], [1, 0]).standard_error)  # one sequence knows no spread
    with pytest.raises(ValueError, match="all counts are 0"):
        ratio_of_sums([0.0], [0])


@pytest.mark.parametrize(
    ("value", "error", "shown"),
    [
        (1.23456, 0.01, "1.2346 ± 0.0100"),
        (1.0, 0.0, "1.0000 ± 0"),
        (0.000123, 0.000034, "0.00012 ± 0.00003"),
        (0.1, 0.00005, "0.1000 ± 0.0001"),
        (-0.1, 1e-17, "-0.1000 ± 0"),
        (1.0, None, "1.0000"),
        (1.0, math.nan, "1.0000"),
        (0.0, None, "0.0000"),
        (None, None, ""),
        (None, 0.1, ""),
    ],
)
def test_a_value_and_its_error(value: float | None, error: float | None, shown: str) -> None:
    assert with_error(value, error) == shown


def test_a_difference_shows_its_sign() -> None:
    assert with_error(0.5, 0.25, "+") == "+0.5000 ± 0.2500"
    assert with_error(-0.5, None, "+") == "-0.5000"


def test_no_difference_at_all_has_no_sign_and_no_error() -> None:
    assert with_error(0.0, 0.0, "+") == "0"
    assert with_error(0.0, 0.5, "+") == "+0.0000 ± 0.5000"
    assert with_error(0.0, 0.0) == "0.0000 ± 0", "a value that is 0 is no difference"
