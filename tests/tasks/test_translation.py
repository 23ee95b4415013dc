from __future__ import annotations

import gzip
import itertools
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ebft.errors import ConfigError, DataError
from ebft.tasks import translation
from ebft.tasks.translation import Pair, Scoring, evaluate, expected_best, read_pairs, score

SOURCES = ["Das Haus ist alt.", "Der Hund schläft.", "Ich trinke gern Kaffee am Morgen.", "Wo ist der Bahnhof?"]
REFERENCES = [
    "The house is old.",
    "The dog is asleep.",
    "I like to drink coffee in the morning.",
    "Where is the station?",
]
GUESSES = ["The house is old.", "The dog sleeps now.", "I like coffee in the morning.", "Where is the train station?"]
PAIRS = [Pair(str(n), s, [r]) for n, (s, r) in enumerate(zip(SOURCES, REFERENCES, strict=True), 1)]
NO_BOOTSTRAP = Scoring(bootstrap=0)


def write(file: Path, rows: list[Any]) -> str:
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return str(file)


def sacrebleu(folder: Path, texts: list[str], references: list[list[str]], *options: str) -> dict[str, Any]:
    """What the command prints for files of lines."""
    (folder / "hyp.txt").write_text("".join(t + "\n" for t in texts), encoding="utf-8")
    files = []
    for number, lines in enumerate(references):
        files.append(folder / f"ref{number}.txt")
        files[-1].write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "sacrebleu", *map(str, files), "-i", str(folder / "hyp.txt"), "-w", "12", *options],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("metric", ["bleu", "chrf"])
def test_corpus_scores_equal_the_sacrebleu_command(metric: str, tmp_path: Path) -> None:
    command = sacrebleu(tmp_path, GUESSES, [REFERENCES], "-m", metric)
    found = evaluate(PAIRS, [[g] for g in GUESSES], NO_BOOTSTRAP)
    assert 0 < command["score"] < 100
    assert round(found["metrics"][metric]["value"], 12) == command["score"]
    assert found["signatures"][metric] == command["signature"]


def test_several_references_and_chinese_equal_the_command(tmp_path: Path) -> None:
    second = ["The house is aged.", "The dog sleeps.", "I enjoy coffee in the morning.", "Where's the station?"]
    pairs = [Pair(p.key, p.source, [p.references[0], r]) for p, r in zip(PAIRS, second, strict=True)]
    command = sacrebleu(tmp_path, GUESSES, [REFERENCES, second], "-m", "bleu")
    found = evaluate(pairs, [[g] for g in GUESSES], NO_BOOTSTRAP)
    assert round(found["metrics"]["bleu"]["value"], 12) == command["score"]
    assert found["signatures"]["bleu"] == command["signature"]
    assert "nrefs:2" in found["signatures"]["bleu"]

    chinese = [["这座房子很旧。", "狗正在睡觉。"], ["这房子很旧。", "那只狗在睡觉。"]]
    pairs = [Pair(str(n), "", [r]) for n, r in enumerate(chinese[0])]
    command = sacrebleu(tmp_path, chinese[1], [chinese[0]], "-m", "bleu", "-tok", "zh")
    for language in ("zh", "Chinese"):
        found = evaluate(pairs, [[g] for g in chinese[1]], Scoring(target_language=language, bootstrap=0))
        assert round(found["metrics"]["bleu"]["value"], 12) == command["score"]
        assert "tok:zh" in found["signatures"]["bleu"]


def test_sentences_may_have_different_numbers_of_references() -> None:
    pairs = [Pair("1", "", ["a b c d e", "a b c d f"]), Pair("2", "", ["g h i j"])]
    found = evaluate(pairs, [["a b c d f"], ["g h i j"]], NO_BOOTSTRAP)
    assert found["metrics"]["bleu"]["value"] == pytest.approx(100)
    assert "nrefs:var" in found["signatures"]["bleu"]


def test_line_breaks_do_not_make_a_second_sentence() -> None:
    broken = [[f"  {guess[:9]}\n{guess[9:].lstrip()} \n"] for guess in GUESSES]
    joined = [[f"{guess[:9]} {guess[9:].lstrip()}"] for guess in GUESSES]
    assert evaluate(PAIRS, broken, NO_BOOTSTRAP)["metrics"] == evaluate(PAIRS, joined, NO_BOOTSTRAP)["metrics"]


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
    found = evaluate(PAIRS, texts, NO_BOOTSTRAP)["metrics"]
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
        return evaluate([p for p, _ in rows], [[g] for _, g in rows], Scoring(bootstrap=300))["metrics"]["bleu"][
            "standard_error"
        ]

    assert error(few) == error(few) > 0
    assert error(few * 16) == pytest.approx(error(few) / 4, rel=0.3)
    assert evaluate(PAIRS[:1], [["x"]], Scoring())["metrics"]["bleu"]["standard_error"] is None


@pytest.mark.parametrize(
    ("row", "fields"),
    [
        ({"translation": {"de": "Hallo", "en": "Hello"}}, ("de", "en")),
        ({"de": "Hallo", "en": "Hello"}, ("de", "en")),
        ({"src": "Hallo", "ref": "Hello"}, (None, None)),
        ({"source": "Hallo", "references": ["Hello"]}, (None, None)),
    ],
)
def test_rows_of_all_kinds(row: dict[str, Any], fields: tuple[str | None, str | None], tmp_path: Path) -> None:
    file = write(tmp_path / "rows.jsonl", [row, {**row, "id": "x-7"}])
    assert read_pairs(file, "test", *fields) == [Pair("1", "Hallo", ["Hello"]), Pair("x-7", "Hallo", ["Hello"])]


def test_prompts_name_the_languages() -> None:
    german, english = (translation.language_name(None, code, "--x") for code in ("de", "en"))
    assert translation.prompts(PAIRS[:1], german, english) == [
        "Translate this from German to English:\nGerman: Das Haus ist alt.\nEnglish:"
    ]
    assert translation.prompts(PAIRS[:1], "A", "B", "{source} =>") == ["Das Haus ist alt. =>"]
    braces = [Pair("1", "a {source} {b}", ["x"])]
    assert translation.prompts(braces, "A", "B", "{source} =>") == ["a {source} {b} =>"]
    assert translation.language_name("Swiss German", "src", "--x") == "Swiss German"
    with pytest.raises(ConfigError, match="give --source-language"):
        translation.language_name(None, "src", "--source-language")
    for template, message in {
        "{text}": "asks for 'text'; it may use source",
        "hello": r"has no \{source\}",
        "{source": "cannot be read",
    }.items():
        with pytest.raises(ConfigError, match=message):
            translation.prompts(PAIRS, "A", "B", template)


class TestScore:
    @pytest.fixture
    def problems(self, tmp_path: Path) -> str:
        return write(
            tmp_path / "problems.jsonl", [{"task_id": p.key, "src": p.source, "ref": p.references[0]} for p in PAIRS]
        )

    def test_one_sample_each(self, problems: str, tmp_path: Path) -> None:
        rows = [{"name": p.key, "completion": g} for p, g in zip(PAIRS, GUESSES, strict=True)][::-1]
        found = score(problems, write(tmp_path / "samples.jsonl", rows))
        expected = sacrebleu(tmp_path, GUESSES, [REFERENCES], "-m", "bleu")
        assert round(found["metrics"]["bleu"]["value"], 12) == expected["score"]
        assert found["metrics"]["bleu"]["standard_error"] > 0
        assert [row["task_id"] for row in found["sentences"]] == ["1", "2", "3", "4"]
        assert found["sentences"][0]["sentence_bleu"] == pytest.approx(100)
        assert found["counts"] == {"problems": 4, "samples": 4}

    def test_several_samples_give_best_of_k(self, problems: str, tmp_path: Path) -> None:
        rows = [{"task_id": p.key, "completion": g} for p in PAIRS for g in [*GUESSES, p.references[0]]]
        found = score(problems, write(tmp_path / "samples.jsonl", rows))["metrics"]
        assert found["best_of_1_sentence_bleu"]["value"] < found["best_of_4_sentence_bleu"]["value"] < 100
        assert "best_of_16_bleu" not in found
        assert "bleu" not in found

    def test_problems_without_ids_go_by_line(self, tmp_path: Path) -> None:
        file = tmp_path / "problems.jsonl"
        file.write_text('{"src": "a", "ref": "b"}\n\n{"src": "c", "ref": "d"}\n')
        samples = write(tmp_path / "s.jsonl", [{"task_id": 1, "completion": "b"}, {"task_id": "3", "completion": "d"}])
        assert score(str(file), samples)["metrics"]["chrf"]["value"] == pytest.approx(100)

    def test_gzipped_problems(self, problems: str, tmp_path: Path) -> None:
        packed = tmp_path / "problems.jsonl.gz"
        packed.write_bytes(gzip.compress(Path(problems).read_bytes()))
        samples = write(tmp_path / "s.jsonl", [{"task_id": p.key, "completion": "x"} for p in PAIRS])
        assert score(str(packed), samples)["metrics"] == score(problems, samples)["metrics"]

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ('{"task_id": "9", "completion": "x"}', "line 5 is for the unknown task '9'"),
            ('{"completion": "x"}', "line 5 has no field 'task_id'"),
            ('{"task_id": "1", "text": "x"}', "line 5 has no text in the field 'completion'"),
            ('{"task_id": "1", "completion": ', "line 5 is not valid JSON"),
            ("[1]", "line 5 is a list, not an object"),
        ],
    )
    def test_bad_samples(self, line: str, message: str, problems: str, tmp_path: Path) -> None:
        file = Path(write(tmp_path / "samples.jsonl", [{"task_id": p.key, "completion": "x"} for p in PAIRS]))
        file.write_text(file.read_text() + line + "\n")
        with pytest.raises(DataError, match=message):
            score(problems, str(file))

    def test_missing_and_empty(self, problems: str, tmp_path: Path) -> None:
        samples = write(tmp_path / "samples.jsonl", [{"task_id": "1", "completion": "x"}])
        with pytest.raises(DataError, match=r"no sample for 3 of 4 tasks: 2, 3, 4"):
            score(problems, samples)
        with pytest.raises(DataError, match="empty"):
            score(problems, write(tmp_path / "none.jsonl", []))
        with pytest.raises(DataError, match="no such file"):
            score(problems, str(tmp_path / "absent.jsonl"))
        with pytest.raises(DataError, match="two rows have the id '1'"):
            score(write(tmp_path / "twice.jsonl", [{"id": 1, "src": "a", "ref": "b"}] * 2), samples)
        bad = write(tmp_path / "bad.jsonl", [{"src": "a", "ref": "b"}, {"src": "a", "reff": "b"}])
        with pytest.raises(DataError, match=r"line 2 has none of the fields refs, .*it has 'src', 'reff'"):
            score(bad, samples)
        with pytest.raises(DataError, match=r"line 1 has no field 'en'; it has 'src', 'ref'"):
            score(bad, samples, target_field="en")


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
    """Against a stand-in for the library, in a process of its own as the real one is."""

    @pytest.fixture(autouse=True)
    def stand_in(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        folder = tmp_path / "library"
        folder.mkdir()
        (folder / "comet.py").write_text(COMET)
        (folder / "torch.py").write_text("class cuda:\n    is_available = staticmethod(lambda: False)\n")
        monkeypatch.setenv("PYTHONPATH", str(folder))
        return folder

    def test_scores_reach_the_metrics(self) -> None:
        found = evaluate(PAIRS, [["abcd"], ["ab"], ["a"], ["abc"]], Scoring(bootstrap=0, comet_model="some/model"))
        assert found["metrics"]["comet"]["value"] == pytest.approx(0.25)
        assert [row["comet"] for row in found["sentences"]] == [0.4, 0.2, 0.1, 0.3]
        texts = [["a", "abc"], ["ab", "b"], ["a", "a"], ["abc", "c"]]
        found = evaluate(PAIRS, texts, Scoring(bootstrap=0, comet_model="some/model"))
        assert found["metrics"]["best_of_1_comet"]["value"] == pytest.approx((0.2 + 0.15 + 0.1 + 0.2) / 4)

    def test_several_references_are_averaged(self, tmp_path: Path) -> None:
        folder = tmp_path / "model" / "checkpoints"
        folder.mkdir(parents=True)
        (folder / "model.ckpt").write_text("")
        pairs = [Pair("1", "s", ["one", "two"]), Pair("2", "s", ["two"])]
        scoring = Scoring(bootstrap=0, comet_model=str(tmp_path / "model"))
        found = evaluate(pairs, [["a"], ["a"]], scoring)["sentences"]
        assert [row["comet"] for row in found] == pytest.approx([0.6, 1.1])

    def test_not_installed_and_failing(self, stand_in: Path) -> None:
        with pytest.raises(ConfigError, match="COMET with the model 'other' failed: AssertionError"):
            evaluate(PAIRS, [["a"]] * 4, Scoring(comet_model="other"))
        (stand_in / "comet.py").write_text("raise ImportError('no comet')")
        with pytest.raises(ConfigError, match=r"COMET needs unbabel-comet, which .* name it with --comet-python"):
            evaluate(PAIRS, [["a"]] * 4, Scoring(comet_model="some/model"))
        with pytest.raises(ConfigError, match="--comet-python /nowhere/python: no such program"):
            evaluate(PAIRS, [["a"]] * 4, Scoring(comet_model="some/model", comet_python="/nowhere/python"))

    def test_the_worker_needs_nothing_of_ebft(self) -> None:
        worker = Path(translation.__file__).with_name("comet_worker.py")
        assert "ebft" not in "".join(line for line in worker.read_text().splitlines() if "import" in line)
        assert os.access(worker, os.R_OK)


def test_unknown_tokenizer_is_named() -> None:
    with pytest.raises(ConfigError, match="sacrebleu's tokenizer 'zhh' cannot be used"):
        evaluate(PAIRS, [["a"]] * 4, Scoring(bleu_tokenize="zhh"))


def test_the_score_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from ebft import cli

    problems = write(tmp_path / "pairs.jsonl", [{"de": s, "en": r} for s, r in zip(SOURCES, REFERENCES, strict=True)])
    samples = write(tmp_path / "samples.jsonl", [{"task_id": n, "completion": g} for n, g in enumerate(GUESSES, 1)])
    fields = ["--source-field", "de", "--target-field", "en"]
    command = [
        "score",
        "translation",
        "--problems",
        problems,
        "--samples",
        samples,
        "--output",
        str(tmp_path / "out.json"),
    ]
    assert cli.main([*command, *fields]) == 0
    found = json.loads((tmp_path / "out.json").read_text())
    command_line = sacrebleu(tmp_path, GUESSES, [REFERENCES], "-m", "bleu")
    assert round(found["metrics"]["bleu"]["value"], 12) == command_line["score"]
    assert found["signatures"]["bleu"] == command_line["signature"]
    rows = [json.loads(line) for line in (tmp_path / "out.samples.jsonl").read_text().splitlines()]
    assert [row["task_id"] for row in rows] == ["1", "2", "3", "4"]
    assert cli.main(command) == 0  # two texts in a row: the pair is clear
    assert json.loads((tmp_path / "out.json").read_text())["metrics"] == found["metrics"]
    write(tmp_path / "pairs.jsonl", [{"de": s, "en": r, "fr": r} for s, r in zip(SOURCES, REFERENCES, strict=True)])
    capfd.readouterr()
    assert cli.main(command) == 2
    said = capfd.readouterr().err
    assert len(said.splitlines()) == 1
    assert "line 1 has none of the fields src, source, source_text; it has 'de', 'en', 'fr': name one with" in said


class TestFieldsOfAPair:
    @pytest.mark.parametrize(
        ("row", "given", "expected"),
        [
            ({"de": "Hallo", "en": "Hello"}, (None, None), ("de", "en")),
            ({"en": "Hello", "de": "Hallo"}, (None, None), ("en", "de")),
            ({"task_id": "a", "de": "Hallo", "en": ["Hello", "Hi"]}, (None, None), ("de", "en")),
            ({"translation": {"de": "Hallo", "en": "Hello"}, "id": 1}, (None, None), ("de", "en")),
            ({"en": "Hello", "de": "Hallo"}, (None, "en"), ("de", "en")),
            ({"en": "Hello", "de": "Hallo", "fr": "Salut"}, (None, None), (None, None)),
            ({"source": "Hallo", "reference": "Hello"}, (None, None), (None, None)),  # known by their names
        ],
    )
    def test_two_texts_are_source_and_reference(
        self, tmp_path: Path, row: dict[str, Any], given: tuple[Any, Any], expected: tuple[Any, Any]
    ) -> None:
        file = tmp_path / "pairs.jsonl"
        file.write_text(json.dumps(row) + "\n")
        assert translation.find_fields(str(file), "test", *given) == expected

    def test_scores_without_naming_fields(self, tmp_path: Path) -> None:
        problems, samples = tmp_path / "test.en-zh.jsonl", tmp_path / "samples.jsonl"
        problems.write_text(json.dumps({"en": "Hello there", "zh": "你好世界和平"}) + "\n", encoding="utf-8")
        samples.write_text(json.dumps({"task_id": "1", "completion": "你好世界和平"}) + "\n", encoding="utf-8")
        found = translation.score(str(problems), str(samples))
        assert found["metrics"]["bleu"]["value"] == pytest.approx(100)
        assert found["settings"]["target_language"] == "zh"  # sacrebleu's tokenizer for Chinese
