"""The paired bootstrap of corpus scores, against sacrebleu's own and against all draws of a small corpus."""

from __future__ import annotations

import itertools
import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest

from ebft.evaluate.translation_scores import TranslationScoring, score_translations
from ebft.problems.translation import Pair
from ebft.studies import statistics, tables
from ebft.studies.evidence import read_study_folder
from ebft.studies.statistics import SEED, Corpus, bootstrap_p, difference, draws, summarise
from tests.studies.made_study import make_study, write_jsonl

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
    monkeypatch.setenv("SACREBLEU_SEED", str(SEED))
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
    found = summarise([one])
    assert (found.value, found.error) == (one.value, pytest.approx(2.01 * draws(one).std(), rel=0.01))
    assert math.isnan(found.p)


def test_one_sentence_says_nothing() -> None:
    references, guesses = corpus_of(1, 0.5, 9)
    found = difference([corpus("chrf", references, guesses)], [corpus("chrf", references, references)])
    assert math.isnan(found.p)
    assert found.interval is None


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
