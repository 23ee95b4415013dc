"""Ratios of sums, their paired differences and records: by hand, by bootstrap and jackknife, and in simulation."""

import math
import random
import statistics
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebft.method.measures import SumsAndCounts, differences, estimates, paired_difference, ratio_of_sums, with_error


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


@pytest.mark.parametrize("divisor", [1, 3])
def test_the_error_of_a_difference_agrees_with_bootstrap(divisor: int) -> None:
    """Also where one side measured fewer contexts of some sequences: no t test would do."""
    after, before = sequences(1, 300, shift=0.05)
    before = SumsAndCounts([s / divisor for s in before.sums], [c // divisor for c in before.counts])

    def difference(chosen: Sequence[int]) -> float:
        return ratio(after, chosen) - ratio(before, chosen)

    found = paired_difference(after, before)
    assert found.mean == pytest.approx(difference(range(300)))
    draw = random.Random(0)
    drawn = statistics.stdev(difference(draw.choices(range(300), k=300)) for _ in range(2000))
    assert found.standard_error == pytest.approx(drawn, rel=0.05)
    apart = math.hypot(ratio_of_sums(*after).standard_error, ratio_of_sums(*before).standard_error)
    assert divisor > 1 or found.standard_error < apart / 3


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(-10, 10), st.floats(-10, 10)), min_size=2, max_size=20), st.integers(1, 50))
def test_with_equal_counts_it_is_the_paired_t(values: list[tuple[float, float]], count: int) -> None:
    counts = [count] * len(values)
    after, before = (SumsAndCounts([count * pair[side] for pair in values], counts) for side in (0, 1))
    moved = [a - b for a, b in values]
    found = paired_difference(after, before)
    assert found.mean == pytest.approx(statistics.mean(moved), abs=1e-9)
    assert found.standard_error == pytest.approx(statistics.stdev(moved) / len(moved) ** 0.5, abs=1e-9)


def test_sequences_that_count_nothing_are_no_observations() -> None:
    assert ratio_of_sums([2.0, 0.0, 4.0], [1, 0, 1]) == ratio_of_sums([2.0, 4.0], [1, 1])
    assert math.isnan(ratio_of_sums([2.0, 0.0], [1, 0]).standard_error)  # one sequence knows no spread
    with pytest.raises(ZeroDivisionError):
        ratio_of_sums([0.0], [0])


def test_a_value_and_its_error() -> None:
    assert with_error(1.23456, math.nan) == "1.2346"
    assert with_error(0.000123, 0.000034) == "0.00012 ± 0.00003"
    assert with_error(-0.1, 1e-17) == "-0.1000 ± 0"
    assert [with_error(0.0, error, "+") for error in (0.5, 0.0)] == ["+0.0000 ± 0.5000", "0"]


def record(sequence: int, contexts: int, cfm: float | None, **more: Any) -> dict[str, Any]:
    base = {"tokens": 10, "log_probs": -20.0, "answer_tokens": 0, "answer_log_probs": 0.0}
    return {"sequence": sequence, **base, "contexts": contexts, "cfm": cfm, "whitened_proxy": cfm, **more}


def test_metrics_are_over_tokens_and_contexts() -> None:
    found = estimates([record(0, 127, 1.0), record(1, 1, 3.0, tokens=30, log_probs=-30.0), record(2, 0, None)])
    assert found["cfm"].mean == pytest.approx((127 * 1 + 3) / 128)
    assert found["cross_entropy"].mean == pytest.approx(70 / 50)
    assert "answer_cross_entropy" not in found
    assert math.isnan(estimates([record(0, 2, None), record(1, 2, 1.0)])["cfm"].mean), "a broken sequence shows"


def test_differences_are_of_the_same_sequences_in_any_order() -> None:
    before = [record(n, n + 1, 10.0 * n) for n in range(4)]
    after = [record(n, n + 1, 10.0 * n - 1, cfm_at_8=1.0, profile_contexts=1) for n in (2, 0, 3, 1)]
    found = differences(after, before)
    assert found["cfm"] == (pytest.approx(-1), pytest.approx(0, abs=1e-12))
    assert found["cross_entropy"] == (0, 0)
    assert "cfm_at_8" not in found  # only one of them has it
    assert differences(after[:3], before) == {}
    assert differences([{**r, "tokens": 9} for r in after], before) == {}
    assert differences([], before) == {}
