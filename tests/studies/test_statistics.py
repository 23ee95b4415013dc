"""The statistics of studies: against scipy, against enumeration, and by simulation of what they promise."""

from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from ebft.method.measures import SumsAndCounts, paired_difference, ratio_of_sums
from ebft.studies.statistics import Measured, difference, holm, measured, sign_flip_p, summarise, wilson

numbers = st.floats(-10, 10).map(lambda x: round(x, 3))


def of(values: list[float], seed: int | None = 0) -> Measured:
    return measured(SumsAndCounts(values, [1] * len(values)), seed)


class TestOneSeed:
    @settings(deadline=None)
    @given(st.lists(st.tuples(numbers, numbers), min_size=13, max_size=40))
    def test_a_difference_is_the_paired_t_test(self, pairs: list[tuple[float, float]]) -> None:
        mine, other = map(list, zip(*pairs, strict=True))
        found = difference([of(mine)], [of(other)])
        moved = [a - b for a, b in pairs]
        if max(moved) - min(moved) < 1e-6:
            return  # scipy has no answer
        theirs = stats.ttest_rel(mine, other)
        low, high = theirs.confidence_interval(0.95)
        assert found.p == pytest.approx(max(theirs.pvalue, 2.0 ** (1 - len(pairs))), rel=1e-6, abs=1e-9)
        assert found.interval is not None
        assert (found.interval.low, found.interval.high) == pytest.approx((low, high), rel=1e-6, abs=1e-6)

    @settings(deadline=None)
    @given(st.lists(st.tuples(numbers, st.integers(0, 5), numbers, st.integers(0, 5)), min_size=3, max_size=10))
    def test_ratios_have_the_delta_methods_error(self, rows: list[tuple[float, int, float, int]]) -> None:
        mine = SumsAndCounts([a for a, *_ in rows], [b for _, b, *_ in rows])
        other = SumsAndCounts([c for *_, c, _ in rows], [d for *_, d in rows])
        if not any(mine.counts) or not any(other.counts):
            return
        found = measured(mine)
        assert found.value == pytest.approx(ratio_of_sums(*mine).mean)
        assert np.nansum(found.pulls) == pytest.approx(0, abs=1e-7)
        if all(mine.counts) and all(other.counts):
            theirs = paired_difference(mine, other)
            between = difference([found], [measured(other)])
            t = stats.t.ppf(0.975, len(rows) - 1)
            assert between.error == pytest.approx(t * theirs.standard_error, rel=1e-6, abs=1e-9)


class TestFewItems:
    @settings(deadline=None)
    @given(st.lists(numbers, min_size=2, max_size=9))
    def test_flipped_signs_by_enumeration(self, moved: list[float]) -> None:
        patterns = itertools.product((1, -1), repeat=len(moved))
        exact = [Fraction(str(number)) for number in moved]
        sums = [abs(sum(sign * number for sign, number in zip(signs, exact, strict=True))) for signs in patterns]
        assert sign_flip_p(moved) == sum(found >= sums[0] for found in sums) / len(sums)

    def test_three_equal_differences_are_no_certainty(self) -> None:
        found = difference([of([1.0, 1.0, 1.0])], [of([0.0, 0.0, 0.0])])
        assert found.p == 0.25  # two of eight patterns of signs


class TestSeeds:
    def test_paired_seeds_by_hand(self) -> None:
        mine = [of([1.0, 2.0, 6.0], 0), of([2.0, 3.0, 10.0], 1)]
        other = [of([0.0, 1.0, 2.0], 0), of([1.0, 1.0, 1.0], 1)]
        # By seed: 3 - 1 = 2 and 5 - 1 = 4. By item: 1.5 - 0.5, 2.5 - 1, 8 - 1.5 = 1, 1.5, 6.5.
        found = difference(mine, other)
        seeds, items = stats.tvar([2, 4]) / 2, stats.tvar([1, 1.5, 6.5]) / 3
        freedom = (seeds + items) ** 2 / (seeds**2 / 1 + items**2 / 2)
        half = stats.t.ppf(0.975, freedom) * math.sqrt(seeds + items)
        assert found.value == 3.0
        assert found.interval is not None
        assert (found.interval.low, found.interval.high) == pytest.approx((3 - half, 3 + half))
        assert (found.seeds, found.items) == (2, 3)

    def test_against_a_model_without_training_only_one_side_varies(self) -> None:
        mine = [of([1.0, 2.0, 6.0], 0), of([2.0, 3.0, 10.0], 1)]
        found = difference(mine, [of([0.0, 1.0, 2.0], None)])
        seeds, items = stats.tvar([3, 5]) / 2, stats.tvar([1.5, 1.5, 6.0]) / 3
        freedom = (seeds + items) ** 2 / (seeds**2 / 1 + items**2 / 2)
        assert found.error == pytest.approx(stats.t.ppf(0.975, freedom) * math.sqrt(seeds + items))
        assert found.seeds == 2

    def test_intervals_cover_and_tests_are_not_too_sure(self) -> None:
        """Models whose seeds and items both vary, and whose methods do not differ: the 95 % interval of the difference
        holds 0 in at least 93 % of the cases (2 standard errors of the simulation below 95 %)."""
        rng = random.Random(1)
        covered, cases = 0, 400
        for _case in range(cases):
            hard = [rng.gauss(0, 3) for _ in range(20)]
            sides = []
            for _side in range(2):
                skew = [rng.gauss(0, 1) for _ in range(20)]
                runs = []
                for seed in range(3):
                    luck = rng.gauss(0, 0.3)
                    runs.append(of([h + s + luck + rng.gauss(0, 1) for h, s in zip(hard, skew, strict=True)], seed))
                sides.append(runs)
            interval = difference(*sides).interval
            assert interval is not None
            covered += interval.low <= 0 <= interval.high
        assert covered / cases >= 0.93


class TestRates:
    @settings(deadline=None)
    @given(st.integers(0, 200), st.integers(1, 200))
    def test_wilsons_interval_is_scipys(self, passed: int, trials: int) -> None:
        passed = min(passed, trials)
        theirs = stats.binomtest(passed, trials).proportion_ci(method="wilson")
        found = wilson(passed / trials, trials)
        assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=1e-9)

    def test_none_of_three_is_not_certainly_zero(self) -> None:
        found = summarise([of([0.0, 0.0, 0.0])], is_rate=True)
        assert found.value == 0.0
        assert found.interval is not None
        assert found.interval.low == 0.0
        assert found.interval.high == pytest.approx(0.5615, abs=1e-4)

    def test_seeds_that_vary_widen_it(self) -> None:
        assert wilson(0.5, 100, 0.0001) == wilson(0.5, 100)
        assert wilson(0.5, 100, 0.01) == wilson(0.5, 25)


class TestManyTests:
    @settings(deadline=None)
    @given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
    def test_holm_by_its_definition(self, p_values: list[float]) -> None:
        """Closed testing: a hypothesis falls if Bonferroni's test rejects every set of hypotheses that holds it."""
        found = holm(p_values)
        for place in range(len(p_values)):
            sets = [
                chosen
                for size in range(1, len(p_values) + 1)
                for chosen in itertools.combinations(range(len(p_values)), size)
                if place in chosen
            ]
            expected = max(min(1.0, len(chosen) * min(p_values[i] for i in chosen)) for chosen in sets)
            assert found[place] == pytest.approx(expected)

    def test_tests_that_could_not_be_made_do_not_count(self) -> None:
        assert holm([0.01, math.nan, 0.04])[::2] == [0.02, 0.04]
        assert math.isnan(holm([0.01, math.nan])[1])


class TestItemsThatCountNothing:
    """A sequence without a context is no observation, whatever else was measured on it."""

    def of_one(self, value: float, seed: int) -> Measured:
        return measured(SumsAndCounts([0.0, 2 * value, 0.0, 0.0], [0, 2, 0, 0]), seed)

    def test_one_observation_has_no_interval_and_no_test_however_many_seeds(self) -> None:
        mine, other = ([self.of_one(level + seed / 10, seed) for seed in range(3)] for level in (0.7, 0.9))
        for found in (summarise(mine), difference(mine, other)):
            assert found.interval is None
            assert math.isnan(found.p)
            assert found.items == 1
            assert found.seeds == 3

    def test_the_others_are_tested_as_if_it_was_not_there(self) -> None:
        sums, other, counts = [1.0, 5.0, 2.0], [2.0, 5.5, 4.5], [1.0, 2.0, 1.0]
        alone = [[measured(SumsAndCounts(given, counts), 0)] for given in (sums, other)]
        beside = [[measured(SumsAndCounts([*given, 0.0], [*counts, 0]), 0)] for given in (sums, other)]
        assert difference(*beside) == difference(*alone)
        assert repr(summarise(beside[0])) == repr(summarise(alone[0]))  # with p NaN, which equals nothing

    def test_items_that_count_in_one_run_only(self) -> None:
        """To first order the mean moves by the mean of the pulls: each run's add up to 0, scaled to all items."""
        one = measured(SumsAndCounts([1.0, 3.0, 0.0], [1, 1, 0]), 0)
        two = measured(SumsAndCounts([1.0, 0.0, 4.0], [1, 0, 1]), 0)
        found = difference([one], [two])
        # Pulls -1, 1 and -1.5, 1.5, each times 3 items / 2 that count: differences 0.75, 1.5, -2.25.
        variance = (0.75**2 + 1.5**2 + 2.25**2) / 2 / 3
        assert found.items == 3
        assert found.error == pytest.approx(stats.t.ppf(0.975, 2) * math.sqrt(variance))
