"""The statistics of studies: against scipy, against enumeration, and by simulation of what they promise. The paired
bootstrap of corpus scores, against sacrebleu's own and against all draws of a small corpus."""

import itertools
import json
import math
import random
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest
from scipy import stats

from ebft.evaluate.translation_scores import TranslationScoring, score_translations
from ebft.method.measures import SumsAndCounts, paired_difference, ratio_of_sums
from ebft.problems.translation import Pair
from ebft.studies import statistics, tables
from ebft.studies.evidence import read_study_folder
from ebft.studies.statistics import Corpus, Measured, bootstrap_p, difference, draws, holm, measured, sign_flip_p
from tests.studies.made_study import make_study, write_jsonl

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
        assert found.p == pytest.approx(max(theirs.pvalue, 2.0 ** (1 - len(pairs))), rel=1e-6, abs=1e-9)
        assert found.interval == pytest.approx(tuple(theirs.confidence_interval(0.95)), rel=1e-6, abs=1e-6)

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
    @pytest.mark.parametrize(
        ("other", "by_seed", "by_item"),
        [
            # 3 - 1 and 5 - 1; 1.5 - 0.5, 2.5 - 1, 8 - 1.5.
            ([of([0.0, 1.0, 2.0], 0), of([1.0, 1.0, 1.0], 1)], [2, 4], [1, 1.5, 6.5]),
            ([of([0.0, 1.0, 2.0], None)], [3, 5], [1.5, 1.5, 6.0]),
        ],
        ids=["paired", "without training, where one side varies"],
    )
    def test_seeds_by_hand(self, other: list[Measured], by_seed: list[float], by_item: list[float]) -> None:
        found = difference([of([1.0, 2.0, 6.0], 0), of([2.0, 3.0, 10.0], 1)], other)
        seeds, items = stats.tvar(by_seed) / 2, stats.tvar(by_item) / 3
        freedom = (seeds + items) ** 2 / (seeds**2 / 1 + items**2 / 2)
        half = stats.t.ppf(0.975, freedom) * math.sqrt(seeds + items)
        assert (found.value, found.seeds, found.items) == (3.0, 2, 3)
        assert found.interval == pytest.approx((3 - half, 3 + half))

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
            low, high = difference(*sides).interval
            covered += low <= 0 <= high
        assert covered / cases >= 0.93


class TestRates:
    @settings(deadline=None)
    @given(st.integers(0, 200), st.integers(1, 200))
    def test_wilsons_interval_is_scipys(self, passed: int, trials: int) -> None:
        passed = min(passed, trials)
        theirs = stats.binomtest(passed, trials).proportion_ci(method="wilson")
        assert statistics.wilson(passed / trials, trials) == pytest.approx((theirs.low, theirs.high), abs=1e-9)

    def test_seeds_that_vary_widen_it(self) -> None:
        assert statistics.wilson(0.5, 100, 0.0001) == statistics.wilson(0.5, 100)
        assert statistics.wilson(0.5, 100, 0.01) == statistics.wilson(0.5, 25)


class TestManyTests:
    @settings(deadline=None)
    @given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
    def test_holm_by_its_definition(self, p_values: list[float]) -> None:
        """Closed testing: a hypothesis falls if Bonferroni's test rejects every set of hypotheses that holds it."""
        places = range(len(p_values))
        sets = [chosen for size in places for chosen in itertools.combinations(places, size + 1)]
        for place, found in enumerate(holm(p_values)):
            expected = [min(1.0, len(s) * min(p_values[i] for i in s)) for s in sets if place in s]
            assert found == pytest.approx(max(expected))

    def test_tests_that_could_not_be_made_do_not_count(self) -> None:
        assert holm([0.01, math.nan, 0.04])[::2] == [0.02, 0.04]
        assert math.isnan(holm([0.01, math.nan])[1])


class TestItemsThatCountNothing:
    """A sequence without a context is no observation, whatever else was measured on it."""

    def test_one_observation_has_no_interval_and_no_test_however_many_seeds(self) -> None:
        sums = ([[0.0, 2 * (level + seed / 10), 0.0, 0.0] for seed in range(3)] for level in (0.7, 0.9))
        mine, other = ([measured(SumsAndCounts(s, [0, 2, 0, 0]), n) for n, s in enumerate(side)] for side in sums)
        for found in (statistics.summarise(mine), difference(mine, other)):
            assert (found.interval, found.items, found.seeds) == (None, 1, 3)
            assert math.isnan(found.p)

    def test_the_others_are_tested_as_if_it_was_not_there(self) -> None:
        sums, other, counts = [1.0, 5.0, 2.0], [2.0, 5.5, 4.5], [1.0, 2.0, 1.0]
        alone = [[measured(SumsAndCounts(given, counts), 0)] for given in (sums, other)]
        beside = [[measured(SumsAndCounts([*given, 0.0], [*counts, 0]), 0)] for given in (sums, other)]
        assert difference(*beside) == difference(*alone)
        with_it, without = (repr(statistics.summarise(sides[0])) for sides in (beside, alone))
        assert with_it == without  # as text: p is NaN, which equals nothing

    def test_items_that_count_in_one_run_only(self) -> None:
        """To first order the mean moves by the mean of the pulls: each run's add up to 0, scaled to all items."""
        one = measured(SumsAndCounts([1.0, 3.0, 0.0], [1, 1, 0]), 0)
        two = measured(SumsAndCounts([1.0, 0.0, 4.0], [1, 0, 1]), 0)
        found = difference([one], [two])
        # Pulls -1, 1 and -1.5, 1.5, each times 3 items / 2 that count: differences 0.75, 1.5, -2.25.
        variance = (0.75**2 + 1.5**2 + 2.25**2) / 2 / 3
        assert found.items == 3
        assert found.error == pytest.approx(stats.t.ppf(0.975, 2) * math.sqrt(variance))


# ---- corpus scores ---------------------------------------------------------------------------------------------------

WORDS = "the cat sat on a mat and saw two small birds in an old tree near our house".split()  # noqa: SIM905
METRICS: dict[str, Any] = {"bleu": BLEU, "chrf": CHRF}


def corpus_of(sentences: int, error: float, seed: int) -> tuple[list[str], list[str]]:
    """References, and translations with some of their words replaced."""
    words, noise = np.random.default_rng(0), np.random.default_rng(seed)
    references = [list(words.choice(WORDS, size=words.integers(5, 12))) for _ in range(sentences)]
    guesses = [[str(noise.choice(WORDS)) if noise.random() < error else w for w in r] for r in references]
    return [" ".join(r) for r in references], [" ".join(g) for g in guesses]


def corpus(name: Any, references: list[str], guesses: list[str], seed: int | None = None) -> Corpus:
    """As an evaluation leaves it."""
    pairs = [Pair(str(place), "", [text]) for place, text in enumerate(references)]
    rows = score_translations(pairs, [[g] for g in guesses], TranslationScoring())["sentences"]
    return Corpus(name, np.array([row[f"{name}_statistics"] for row in rows]), seed)


@pytest.mark.parametrize("name", METRICS)
def test_the_draws_are_those_of_sacrebleus_paired_test(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its p-value to the last digit, from our draws by its formula; ours is two-sided, so it is no smaller."""
    monkeypatch.setenv("SACREBLEU_SEED", str(statistics.SEED))
    references, one = corpus_of(40, 0.30, 1)
    _, two = corpus_of(40, 0.36, 2)
    test = PairedTest([("one", one), ("two", two)], {name: METRICS[name]()}, [references], "bs", n_samples=1000)
    theirs = next(iter(scores for key, scores in test()[1].items() if key != "System"))[1]
    first, second = corpus(name, references, one), corpus(name, references, two)
    drawn, real = draws(second, 1000) - draws(first, 1000), second.value - first.value
    away = np.abs(drawn) - np.abs(drawn).mean()
    assert theirs.p_value == pytest.approx(((away > abs(real)).sum() + 1) / 1001, abs=1e-12)
    assert 0.001 < theirs.p_value < 0.5, "a case that says something"
    assert bootstrap_p(real, drawn) >= theirs.p_value


@pytest.mark.parametrize("name", METRICS)
def test_against_all_draws_of_a_small_corpus(name: str) -> None:
    references, one = corpus_of(4, 0.2, 3)
    _, two = corpus_of(4, 0.4, 4)
    sides = [corpus(name, references, guesses) for guesses in (two, one)]
    real = sides[0].value - sides[1].value
    every = [list(places) for places in itertools.product(range(4), repeat=4)]
    all_differences = np.array(
        [np.subtract(*(Corpus(side.metric, side.statistics[p]).value for side in sides)) for p in every]
    )
    drawn = draws(sides[0]) - draws(sides[1])
    assert drawn.mean() == pytest.approx(all_differences.mean(), abs=4 * all_differences.std() / 100)
    assert drawn.std() == pytest.approx(all_differences.std(), rel=0.05)
    exact = float((np.abs(all_differences - all_differences.mean()) >= abs(real)).mean())
    assert bootstrap_p(real, drawn) == pytest.approx(exact, abs=0.02)


def test_seeds_that_disagree_are_counted() -> None:
    """Alone, each pair of runs differs clearly; together the seeds contradict each other."""
    references, good = corpus_of(60, 0.1, 5)
    _, bad = corpus_of(60, 0.3, 6)
    _, middle = corpus_of(60, 0.2, 7)
    mine = [corpus("chrf", references, text, seed) for seed, text in enumerate((good, bad))]
    other = [corpus("chrf", references, middle, seed) for seed in (0, 1)]
    alone, together = difference(mine[:1], other[:1]), difference(mine, other)
    assert (alone.value, alone.items) == (pytest.approx(mine[0].value - other[0].value), 60)
    assert alone.p < 0.05 < 0.3 < together.p
    assert (alone.seeds, together.seeds) == (1, 2)
    assert together.error > alone.error
    assert difference(mine, mine).p == 1.0


def test_the_interval_of_one_model_is_that_of_its_draws() -> None:
    references, guesses = corpus_of(50, 0.3, 8)
    one = corpus("bleu", references, guesses, 0)
    found = statistics.summarise([one])
    assert (found.value, found.error) == (one.value, pytest.approx(2.01 * draws(one).std(), rel=0.01))
    assert math.isnan(found.p)
    references, guesses = corpus_of(1, 0.5, 9)
    found = difference([corpus("chrf", references, guesses)], [corpus("chrf", references, references)])
    assert math.isnan(found.p)
    assert found.interval is None, "one sentence says nothing"


def with_translations(study: Path, errors: dict[str, float]) -> None:
    """Translations of the same 60 sentences by every model of a study, with so many wrong words."""
    for place, folder in enumerate(sorted((study / "evaluations").iterdir())):
        references, guesses = corpus_of(60, errors[folder.name.partition(",")[0]], 10 + place)
        pairs = [Pair(str(number), "", [text]) for number, text in enumerate(references)]
        found = score_translations(pairs, [[g] for g in guesses], TranslationScoring())
        write_jsonl(folder / "translation.greedy.scores.jsonl", found["sentences"])
        results = json.loads((folder / "results.json").read_text())
        metrics = {f"greedy_{name}": found["metrics"][name] for name in ("bleu", "chrf")}
        results["tasks"]["translation"] = {"name": "translation", "metrics": metrics, "settings": {}}
        (folder / "results.json").write_text(json.dumps(results))


def test_a_report_tests_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "draws", partial(draws, times=500))
    study = make_study(tmp_path, sft=1.0, ebft=0.5)
    with_translations(study, {"base": 0.4, "sft": 0.4, "ebft": 0.1})
    evidence = read_study_folder(study)
    metrics = ["translation greedy_bleu", "translation greedy_chrf"]
    (ranking,) = tables.rankings(evidence, metrics[:1])
    assert (ranking.mine.title, ranking.reading) == ("ebft", "better")
    of_pairs = tables.differences_table(evidence, metrics).cells
    readings = {(row[0], row[1], row[2]): row[6] for row in of_pairs.itertuples(index=False)}
    assert {readings[f"translation greedy {score}", "ebft", "sft"] for score in ("BLEU", "chrF")} == {"better"}
    assert readings["translation greedy BLEU", "sft", "base"] == "not separable"
