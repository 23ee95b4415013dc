from __future__ import annotations

import itertools
import json
import random
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ebft.errors import ConfigError
from ebft.evaluate.translation_scores import TranslationScoring, expected_best, score_translations
from ebft.problems.translation import Pair
from tests.problems.rows import GUESSES, PAIRS, REFERENCES

SCORING = TranslationScoring()


def sacrebleu(folder: Path, texts: list[str], references: list[list[str]], *options: str) -> dict[str, Any]:
    """What the command prints for files of lines."""
    files = [folder / f"{number}.txt" for number in range(1 + len(references))]
    for file, lines in zip(files, [texts, *references], strict=True):
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", *map(str, files[1:]), "-i", str(files[0]), "-w", "12", *options]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


SECOND = ["The house is aged.", "The dog sleeps.", "I enjoy coffee in the morning.", "Where's the station?"]
CHINESE = [["这座房子很旧。", "狗正在睡觉。"], ["这房子很旧。", "那只狗在睡觉。"]]
COMMANDS = {
    "chrf": (GUESSES, [REFERENCES], "chrf", "", "nrefs:1"),
    "several references": (GUESSES, [REFERENCES, SECOND], "bleu", "", "nrefs:2"),
    "a name": (CHINESE[1], [CHINESE[0]], "bleu", "Chinese", "tok:zh"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_corpus_scores_equal_the_sacrebleu_command(name: str, tmp_path: Path) -> None:
    texts, references, metric, language, signature = COMMANDS[name]
    command = sacrebleu(tmp_path, texts, references, "-m", metric, *(["-tok", "zh"] if language else []))
    pairs = [Pair(str(number), "", list(of)) for number, of in enumerate(zip(*references, strict=True))]
    scoring = TranslationScoring(target_language=language)
    found = score_translations(pairs, [[text] for text in texts], scoring)
    assert 0 < command["score"] < 100
    assert round(found["metrics"][metric]["value"], 12) == command["score"]
    assert found["signatures"][metric] == command["signature"]
    assert signature in command["signature"]


def test_expected_best_is_the_mean_over_all_choices() -> None:
    random.seed(0)
    for n, k in [(5, 1), (5, 3), (5, 5), (7, 4), (1, 1)]:
        scores = [random.choice([0.0, random.random()]) for _ in range(n)]
        choices = list(itertools.combinations(scores, k))
        assert expected_best(scores, k) == pytest.approx(sum(map(max, choices)) / len(choices))
    assert expected_best([0.0, 1.0], 1) == 0.5


def test_best_of_k_by_hand() -> None:
    """Eight samples: best of 4 picks within samples 0-3 and within 4-7 and averages the two corpora's scores."""
    from sacrebleu.metrics import BLEU, CHRF

    random.seed(1)
    words = " ".join(REFERENCES).replace(".", "").split()
    texts = [[" ".join(random.sample(words, 5)) + "." for _ in range(6)] + [p.references[0], "no"] for p in PAIRS]
    found = score_translations(PAIRS, texts, SCORING)["metrics"]
    assert [k for k in (1, 4, 16) if f"best_of_{k}_bleu" in found] == [1, 4]
    for name, sentence, corpus in (("bleu", BLEU(effective_order=True), BLEU()), ("chrf", CHRF(), CHRF())):
        scores = [
            [sentence.sentence_score(text, pair.references).score for text in of]
            for pair, of in zip(PAIRS, texts, strict=True)
        ]
        best = [[max(range(at, at + 4), key=of.__getitem__) for of in scores] for at in (0, 4)]
        picked = [[of[n] for of, n in zip(texts, numbers, strict=True)] for numbers in best]
        groups = [corpus.corpus_score(of_group, [REFERENCES]).score for of_group in picked]
        assert found[f"best_of_4_{name}"]["value"] == pytest.approx(sum(groups) / 2)
        assert groups[1] == pytest.approx(100), "the references are among the second four"
        singles = [corpus.corpus_score([of[i] for of in texts], [REFERENCES]).score for i in range(8)]
        assert found[f"best_of_1_{name}"]["value"] == pytest.approx(sum(singles) / 8)
        means = [sum(max(c) for c in itertools.combinations(s, 4)) / 70 for s in scores]
        of_sentences = [sum(means) / 4, statistics.stdev(means) / 2, 4]  # value, standard error, count
        assert [*found[f"best_of_4_sentence_{name}"].values()] == pytest.approx(of_sentences)


def test_standard_error_of_corpus_scores_is_repeatable_and_shrinks() -> None:
    random.seed(2)
    few = [(p, [random.choice(GUESSES)]) for p in PAIRS * 5]

    def error(rows: list[Any]) -> float:
        return score_translations(*zip(*rows, strict=True), SCORING)["metrics"]["bleu"]["standard_error"]

    assert error(few) == error(few) > 0
    assert error(few * 16) == pytest.approx(error(few) / 4, rel=0.3)
    assert error(few[:1]) is None


COMET = """
def download_model(name):
    assert name == "some/model"
    return "downloaded"
def load_from_checkpoint(path):
    assert path == "downloaded"
    return Model()
class Model:
    def predict(self, rows, batch_size, gpus):
        assert set(rows[0]) == {"src", "mt", "ref"}
        class Output: scores = [len(r["mt"]) / 10 + (r["ref"] == "two") for r in rows]
        return Output
"""


def test_comet_scores_reach_the_metrics_and_average_over_references(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "comet.py").write_text(COMET)
    (tmp_path / "torch.py").write_text("class cuda:\n    is_available = staticmethod(lambda: False)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    scoring = TranslationScoring(comet_model="some/model")
    pairs = [Pair("1", "s", ["one", "two"]), Pair("2", "s", ["three"])]
    found = score_translations(pairs, [["abcd"], ["ab"]], scoring)
    assert [row["comet"] for row in found["sentences"]] == [pytest.approx(0.9), pytest.approx(0.2)]
    assert found["metrics"]["comet"]["value"] == pytest.approx(0.55)
    found = score_translations(pairs, [["a", "abc"], ["ab", "b"]], scoring)
    assert found["metrics"]["best_of_1_comet"]["value"] == pytest.approx((0.6 + 0.8 + 0.2 + 0.1) / 4)
    (tmp_path / "comet.py").write_text("raise ImportError('no comet')")
    with pytest.raises(ConfigError, match=r"no comet; it needs .* unbabel-comet .* --comet-python"):
        score_translations(pairs, [["a"], ["a"]], scoring)
