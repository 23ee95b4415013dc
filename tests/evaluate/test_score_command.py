"""`ebft score TASK`: results, what it leaves on disk, a clear line for bad input; what is counted and run again. Scores
of translations are those of the sacrebleu command."""

import itertools
import json
import random
import statistics
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from ebft import cli
from ebft.errors import ConfigError
from ebft.evaluate import scoring
from ebft.evaluate.scoring import pass_at_k, pass_at_ks, score_programs
from ebft.evaluate.translation_scores import TranslationScoring, expected_best, score_translations
from ebft.problems.problem import Record
from ebft.problems.python_problems import humaneval_problem
from ebft.problems.translation import Pair
from ebft.runtime.files import read_jsonl
from ebft.sandbox.box import Limits, Sandbox
from ebft.sandbox.other_languages import Language
from ebft.sandbox.python_tests import Outcome
from tests.hard.honest import ANSWERS
from tests.problems.rows import GUESSES, PAIRS, REFERENCES, write
from tests.sandbox.attacks.python import HEAD, TESTS
from tests.sandbox.multipl_e import checks_of, own_problem, prompt_of
from tests.sandbox.sandboxed import needs_language, needs_sandbox

ADD = {"task_id": "Own/0", "prompt": HEAD, "entry_point": "add", "test": TESTS}
NEGATE = {"task_id": "Own/1", "prompt": 'def negate(a):\n    """The other sign."""\n', "entry_point": "negate"}
NEGATE |= {"test": "def check(candidate):\n    assert candidate(2) == -2\n    assert candidate(0) == 0\n"}


def sample(task_id: Any, completion: Any, **more: Any) -> dict[str, Any]:
    return {"task_id": task_id, "completion": completion, **more}


SAMPLES = [
    sample("Own/0", "    return a + b\n"),
    sample("Own/0", '    raise ValueError("\\x1b[31m\\n" + "x" * 5000 + "\\u2028")\n'),
    sample("Own/1", "```python\ndef negate(a):\n    return -a\n```"),
    sample("Own/0", "    raise SystemExit(0)\n"),
    sample("Own/1", "    while True:\n        pass\n"),
    sample("Own/1", "    return -a\n", finish="length"),
]
OUTCOMES = "results.samples.jsonl"


def run(folder: Path, task: str, problems: list[Any], samples: list[Any], *more: str) -> int:
    files = ["--problems", write(folder / "problems.jsonl", problems)]
    files += ["--samples", write(folder / "samples.jsonl", samples), "--output", str(folder / "results.json")]
    return cli.main(["score", task, *files, *more])


def scored(folder: Path, *arguments: Any) -> dict[str, Any]:
    assert run(folder, *arguments) == 0
    return json.loads((folder / "results.json").read_text())


@needs_sandbox
def test_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = scored(tmp_path, "humaneval", [ADD, NEGATE], SAMPLES, "--timeout", "3", "--k", "1,2,3,4")
    # Own/0 has 1 of 3, Own/1 2 of 3: pass@2 is the mean of 1 - 1/3 and 1.
    expected = {"value": pytest.approx(0.5), "standard_error": pytest.approx(1 / 6), "count": 2}
    assert results["metrics"]["pass@1"] == expected
    assert results["pass@1"] == pytest.approx(0.5)
    assert results["metrics"]["pass@2"]["value"] == pytest.approx(5 / 6)
    assert results["metrics"].keys() == {"pass@1", "pass@2", "pass@3", "empty", "cut", "no_code"}
    assert results["metrics"]["cut"]["value"] == pytest.approx(1 / 6)
    assert results["statuses"] == {"passed": 3, "failed": 2, "timeout": 1, "error": 0}
    assert (results["settings"]["seconds"], results["versions"]["sandbox"]) == (3.0, "bubblewrap")
    outcomes = read_jsonl(tmp_path / OUTCOMES)
    of = [("Own/0", 0), ("Own/0", 1), ("Own/1", 0), ("Own/0", 2), ("Own/1", 1), ("Own/1", 2)]
    statuses = ["passed", "failed", "passed", "failed", "timeout", "passed"]
    assert [(row["task_id"], row["sample"]) for row in outcomes] == of
    assert [row["status"] for row in outcomes] == statuses
    # Messages come from programs: no control characters, one line, short.
    assert all(len(row["message"]) <= 300 and row["message"].isprintable() for row in outcomes)
    assert "0.5000 ± 0.1667" in capsys.readouterr().out


@needs_sandbox
def test_mbpp_ids(tmp_path: Path) -> None:
    code = "def add(a, b):\n    return a + b"
    row = {"task_id": 11, "text": "Add.", "code": code, "test_list": ["assert add(1, 2) == 3"]}
    rows = [sample(name, code) for name in (11, "11", "MBPP/11")]
    rows.append({"name": "11", "completion": "def add(a, b):\n    return 4"})
    assert scored(tmp_path, "mbpp", [row], rows)["pass@1"] == pytest.approx(0.75)


@needs_sandbox
@needs_language("js")
def test_a_language_of_several_and_a_missing_one(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    names = [{"language": language, "name": "mean"} for language in ("js", "php")]
    problems = [{**n, "prompt": prompt_of(*n.values()), "tests": checks_of(*n.values())} for n in names]
    samples = [{**n, "completion": ANSWERS[n["language"]][n["name"]][0]} for n in names]
    results = scored(tmp_path, "multipl-e", problems, samples, "--language", "JavaScript")
    assert (results["counts"]["problems"], results["counts"]["samples"], results["pass@1"]) == (1, 1, 1.0)
    monkeypatch.setattr(Language, "missing", lambda self: "no php here")
    for arguments, said in (
        ([], "has several languages; choose one with --language: js, php"),
        (["--language", "php"], "no php here"),
    ):
        assert run(tmp_path, "multipl-e", problems, samples, *arguments) == cli.BAD_INPUT
        assert said in capsys.readouterr().err


BAD: list[tuple[str, list[Any], str]] = [
    ("humanevil", SAMPLES, "unknown task 'humanevil', and no such folder; did you mean 'humaneval'?"),
    ("humaneval", [sample("Own/7", "x")], "row 1: there is no problem 'Own/7'"),
    ("humaneval --samples results.samples.jsonl", SAMPLES, "would overwrite problems or samples"),
    ("translation", [sample("1", "x")], "there is no sample for 3 of 4 tasks, such as 2"),
]
PARALLEL = [{"src": pair.source, "ref": pair.references[0]} for pair in PAIRS]


@pytest.mark.parametrize(("task", "rows", "message"), BAD)
def test_bad_input(task: str, rows: list[Any], message: str, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    task, *more = task.split()
    assert run(tmp_path, task, PARALLEL if task == "translation" else [ADD], rows, *more) == cli.BAD_INPUT
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert sorted(file.name for file in tmp_path.iterdir()) == ["problems.jsonl", "samples.jsonl"]


def test_without_a_sandbox_nothing_runs_unless_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PATH", "/nonexistent")
        assert run(tmp_path, "humaneval", [ADD, NEGATE], SAMPLES) == cli.BAD_INPUT
    assert "--unsafe-exec" in capsys.readouterr().err
    assert not list(tmp_path.glob("results*"))
    results = scored(tmp_path, "humaneval", [ADD, NEGATE], SAMPLES[:3], "--unsafe-exec")
    assert (results["statuses"]["passed"], results["versions"]["sandbox"]) == (2, "none")


def test_translations(tmp_path: Path) -> None:
    """Without ids, sentences go by row."""
    rows = [{"name": p.key, "completion": guess} for p, guess in zip(PAIRS, GUESSES, strict=True)][::-1]
    found = scored(tmp_path, "translation", PARALLEL, rows)
    assert found["metrics"].keys() == {"bleu", "chrf", "sentence_bleu", "sentence_chrf", "empty", "cut"}
    sentences = read_jsonl(tmp_path / OUTCOMES)
    assert [row["task_id"] for row in sentences] == ["1", "2", "3", "4"]
    assert sentences[0]["sentence_bleu"] == pytest.approx(100)


def row(task_id: str, sample: int, completion: str) -> dict[str, Any]:
    return {"task_id": task_id, "sample": sample, "completion": completion, "finish": "end"}


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """In place of the sandbox: "00" and "11" pass, "10" is an error of the harness, the others fail, each with its own
    text as message; what was run, in order."""
    answers: list[str] = []

    def run_many(attempts: Any, *rest: Any) -> Any:
        for attempt in attempts:
            answers.append(attempt.answer)
            status = {"00": "passed", "11": "passed", "10": "error"}.get(attempt.answer, "failed")
            yield attempt, Outcome(status, attempt.answer)

    monkeypatch.setattr(scoring, "run_many", run_many)
    return answers


def test_outcomes_are_kept_but_errors_are_tried_again(ran: list[str], tmp_path: Path) -> None:
    file, names = tmp_path / "o.jsonl", ("a", "b", "c")
    problems = {name: humaneval_problem(Record("own", {**ADD, "task_id": name})) for name in names}
    rows = [row(name, number, f"{place}{number}") for place, name in enumerate("ab") for number in range(2)]

    def rescored(rows: list[Any], **limits: Any) -> dict[str, Any]:
        ran.clear()
        return score_programs(problems, rows, Sandbox(limits=Limits(**limits)), file)

    first = rescored(rows)
    assert first["counts"] == {"problems": 3, "problems_scored": 2, "samples": 4}
    assert first["statuses"] == {"passed": 2, "failed": 1, "timeout": 0, "error": 1}
    assert [note.split()[0:3] for note in first["notes"]] == [["1", "of", "3"], ["1", "samples", "ended"]]
    assert rescored(rows)["metrics"] == first["metrics"]
    assert ran == ["10"]
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:2]) + '{"key": "')  # a killed run's
    rescored([rows[0], row("a", 1, "another"), *rows[2:]])
    assert ran == ["another", "10", "11"]
    rescored(rows, seconds=3)
    assert len(ran) == 4, "other limits, other outcomes"
    found = rescored([row("a", sample, "equal") for sample in range(3)])
    assert (ran, found["counts"]["samples"], len(file.read_text().splitlines())) == (["equal"], 3, 3)


def test_a_language_of_which_nothing_compiles_is_named(ran: list[str], tmp_path: Path) -> None:
    a, b = "does not compile: a", "does not compile: b"
    for messages, named in (([a, b], True), ([a, "exit code 1"], False), ([a], False)):
        rows = [row("own", number, message) for number, message in enumerate(messages)]
        found = score_programs({"own": own_problem("rs")}, rows, Sandbox(unsafe=True), tmp_path / "o.jsonl")
        assert any("no answer in rs compiles" in note for note in found["notes"]) == named


def test_pass_at_k_is_the_share_of_all_subsets() -> None:
    for n in range(1, 8):
        for passed, k in itertools.product(range(n + 1), range(1, n + 1)):
            subsets = list(itertools.combinations([True] * passed + [False] * (n - passed), k))
            assert pass_at_k(n, passed, k) == Fraction(sum(map(any, subsets)), len(subsets))
    # Means and errors are over problems.
    assert pass_at_ks([(4, 1), (4, 3)], [1]) == {"pass@1": {"value": 0.5, "standard_error": 0.25, "count": 2}}
    assert pass_at_ks([(4, 1)], [1])["pass@1"]["standard_error"] is None
    assert list(pass_at_ks([(4, 2), (3, 1)], [1, 3, 4, 16])) == ["pass@1", "pass@3"], "too few samples are not guessed"
    assert pass_at_ks([], [1]) == {}


# ---- translations ----------------------------------------------------------------------------------------------------


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
