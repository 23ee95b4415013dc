from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from ebft.errors import ConfigError
from ebft.evaluate.translation_scores import TranslationScoring, expected_best, score_translations
from ebft.problems.translation import Pair
from tests.evaluate.sacrebleu_command import sacrebleu
from tests.problems.pairs import GUESSES, PAIRS, REFERENCES

NO_BOOTSTRAP = TranslationScoring(bootstrap=0)


@pytest.mark.parametrize("metric", ["bleu", "chrf"])
def test_corpus_scores_equal_the_sacrebleu_command(metric: str, tmp_path: Path) -> None:
    command = sacrebleu(tmp_path, GUESSES, [REFERENCES], "-m", metric)
    found = score_translations(PAIRS, [[g] for g in GUESSES], NO_BOOTSTRAP)
    assert 0 < command["score"] < 100
    assert round(found["metrics"][metric]["value"], 12) == command["score"]
    assert found["signatures"][metric] == command["signature"]


def test_several_references_and_chinese_equal_the_command(tmp_path: Path) -> None:
    second = ["The house is aged.", "The dog sleeps.", "I enjoy coffee in the morning.", "Where's the station?"]
    pairs = [Pair(p.key, p.source, [p.references[0], r]) for p, r in zip(PAIRS, second, strict=True)]
    command = sacrebleu(tmp_path, GUESSES, [REFERENCES, second], "-m", "bleu")
    found = score_translations(pairs, [[g] for g in GUESSES], NO_BOOTSTRAP)
    assert round(found["metrics"]["bleu"]["value"], 12) == command["score"]
    assert found["signatures"]["bleu"] == command["signature"]
    assert "nrefs:2" in found["signatures"]["bleu"]

    chinese = [["这座房子很旧。", "狗正在睡觉。"], ["这房子很旧。", "那只狗在睡觉。"]]
    pairs = [Pair(str(n), "", [r]) for n, r in enumerate(chinese[0])]
    command = sacrebleu(tmp_path, chinese[1], [chinese[0]], "-m", "bleu", "-tok", "zh")
    for language in ("zh", "Chinese"):
        found = score_translations(
            pairs, [[g] for g in chinese[1]], TranslationScoring(target_language=language, bootstrap=0)
        )
        assert round(found["metrics"]["bleu"]["value"], 12) == command["score"]
        assert "tok:zh" in found["signatures"]["bleu"]


def test_sentences_may_have_different_numbers_of_references() -> None:
    pairs = [Pair("1", "", ["a b c d e", "a b c d f"]), Pair("2", "", ["g h i j"])]
    found = score_translations(pairs, [["a b c d f"], ["g h i j"]], NO_BOOTSTRAP)
    assert found["metrics"]["bleu"]["value"] == pytest.approx(100)
    assert "nrefs:var" in found["signatures"]["bleu"]


def test_line_breaks_do_not_make_a_second_sentence() -> None:
    broken = [[f"  {guess[:9]}\n{guess[9:].lstrip()} \n"] for guess in GUESSES]
    joined = [[f"{guess[:9]} {guess[9:].lstrip()}"] for guess in GUESSES]
    assert (
        score_translations(PAIRS, broken, NO_BOOTSTRAP)["metrics"]
        == score_translations(PAIRS, joined, NO_BOOTSTRAP)["metrics"]
    )


def test_expected_best_is_the_mean_over_all_choices() -> None:
    random.seed(0)
    for n, k in [(5, 1), (5, 3), (5, 5), (7, 4), (1, 1)]:
        scores = [random.choice([0.0, random.random()]) for _ in range(n)]
        choices = list(itertools.combinations(scores, k))
        assert expected_best(scores, k) == pytest.approx(sum(map(max, choices)) / len(choices))
    assert expected_best([0.0, 1.0], 1) == 0.5
    with pytest.raises(ValueError, match="k=3 must lie between 1 and the number of samples, 2"):
        expected_best([1.0, 2.0], 3)


def test_best_of_k_by_hand() -> None:
    """Eight samples: best of 4 picks within samples 0-3 and within 4-7 and averages the two corpora's scores."""
    from sacrebleu.metrics import BLEU, CHRF

    random.seed(1)
    words = [
        "the",
        "house",
        "is",
        "old",
        "dog",
        "asleep",
        "I",
        "like",
        "to",
        "drink",
        "coffee",
        "in",
        "morning",
        "where",
        "station",
    ]
    texts = [[" ".join(random.sample(words, 5)) + "." for _ in range(6)] + [p.references[0], "no"] for p in PAIRS]
    found = score_translations(PAIRS, texts, NO_BOOTSTRAP)["metrics"]
    assert [k for k in (1, 4, 16) if f"best_of_{k}_bleu" in found] == [1, 4]
    for name, sentence, corpus in (("bleu", BLEU(effective_order=True), BLEU()), ("chrf", CHRF(), CHRF())):
        scores = [
            [sentence.sentence_score(t, p.references).score for t in of] for p, of in zip(PAIRS, texts, strict=True)
        ]
        groups = []
        for start in (0, 4):
            picks = [of[start : start + 4][_argmax(s[start : start + 4])] for of, s in zip(texts, scores, strict=True)]
            groups.append(corpus.corpus_score(picks, [REFERENCES]).score)
        assert found[f"best_of_4_{name}"]["value"] == pytest.approx(sum(groups) / 2)
        assert groups[1] == pytest.approx(100), "the references are among the second four"
        singles = [corpus.corpus_score([of[i] for of in texts], [REFERENCES]).score for i in range(8)]
        assert found[f"best_of_1_{name}"]["value"] == pytest.approx(sum(singles) / 8)
        best = [sum(max(c) for c in itertools.combinations(s, 4)) / 70 for s in scores]
        assert found[f"best_of_4_sentence_{name}"]["value"] == pytest.approx(sum(best) / 4)
        mean = sum(best) / 4
        error = (sum((b - mean) ** 2 for b in best) / 3 / 4) ** 0.5
        assert found[f"best_of_4_sentence_{name}"]["standard_error"] == pytest.approx(error)
        assert found[f"best_of_4_sentence_{name}"]["count"] == 4


def _argmax(values: list[float]) -> int:
    return values.index(max(values))


def test_standard_error_of_corpus_scores_is_repeatable_and_shrinks() -> None:
    random.seed(2)
    few = [(p, random.choice(GUESSES)) for p in PAIRS * 5]

    def error(rows: list[Any]) -> float:
        return score_translations([p for p, _ in rows], [[g] for _, g in rows], TranslationScoring(bootstrap=300))[
            "metrics"
        ]["bleu"]["standard_error"]

    assert error(few) == error(few) > 0
    assert error(few * 16) == pytest.approx(error(few) / 4, rel=0.3)
    assert score_translations(PAIRS[:1], [["x"]], TranslationScoring())["metrics"]["bleu"]["standard_error"] is None


def test_unknown_tokenizer_is_named() -> None:
    with pytest.raises(ConfigError, match="sacrebleu's tokenizer 'zhh' cannot be used"):
        score_translations(PAIRS, [["a"]] * 4, TranslationScoring(bleu_tokenize="zhh"))


COMET = """
def download_model(name):
    assert name == "some/model"
    return "downloaded"
class Model:
    def predict(self, rows, batch_size, gpus):
        assert set(rows[0]) == {"src", "mt", "ref"}
        class Output: scores = [len(r["mt"]) / 10 + (r["ref"] == "two") for r in rows]
        return Output
def load_from_checkpoint(path):
    assert path == "downloaded" or path.endswith("model.ckpt")
    return Model()
"""


class TestComet:
    @pytest.fixture(autouse=True)
    def stand_in(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        folder = tmp_path / "library"
        folder.mkdir()
        (folder / "comet.py").write_text(COMET)
        (folder / "torch.py").write_text("class cuda:\n    is_available = staticmethod(lambda: False)\n")
        monkeypatch.setenv("PYTHONPATH", str(folder))
        return folder

    def test_scores_reach_the_metrics(self) -> None:
        found = score_translations(
            PAIRS, [["abcd"], ["ab"], ["a"], ["abc"]], TranslationScoring(bootstrap=0, comet_model="some/model")
        )
        assert found["metrics"]["comet"]["value"] == pytest.approx(0.25)
        assert [row["comet"] for row in found["sentences"]] == [0.4, 0.2, 0.1, 0.3]
        texts = [["a", "abc"], ["ab", "b"], ["a", "a"], ["abc", "c"]]
        found = score_translations(PAIRS, texts, TranslationScoring(bootstrap=0, comet_model="some/model"))
        assert found["metrics"]["best_of_1_comet"]["value"] == pytest.approx((0.2 + 0.15 + 0.1 + 0.2) / 4)

    def test_several_references_are_averaged(self, tmp_path: Path) -> None:
        folder = tmp_path / "model" / "checkpoints"
        folder.mkdir(parents=True)
        (folder / "model.ckpt").write_text("")
        pairs = [Pair("1", "s", ["one", "two"]), Pair("2", "s", ["two"])]
        scoring = TranslationScoring(bootstrap=0, comet_model=str(tmp_path / "model"))
        found = score_translations(pairs, [["a"], ["a"]], scoring)["sentences"]
        assert [row["comet"] for row in found] == pytest.approx([0.6, 1.1])

    def test_not_installed_and_failing(self, stand_in: Path) -> None:
        with pytest.raises(ConfigError, match="COMET with the model 'other' failed: AssertionError"):
            score_translations(PAIRS, [["a"]] * 4, TranslationScoring(comet_model="other"))
        (stand_in / "comet.py").write_text("raise ImportError('no comet')")
        with pytest.raises(ConfigError, match=r"no comet; it needs .* unbabel-comet .* --comet-python"):
            score_translations(PAIRS, [["a"]] * 4, TranslationScoring(comet_model="some/model"))
        with pytest.raises(ConfigError, match="--comet-python /nowhere/python: no such program"):
            score_translations(
                PAIRS, [["a"]] * 4, TranslationScoring(comet_model="some/model", comet_python="/nowhere/python")
            )
