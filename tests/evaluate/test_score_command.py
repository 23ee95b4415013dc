"""`ebft score` from the command line: results, what it leaves on disk, resuming, and one clear line for bad input."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ebft import cli
from ebft.errors import DataError
from ebft.evaluate import score_command, scoring
from ebft.evaluate.scoring import outcomes_file_of
from ebft.runtime.files import locked
from ebft.sandbox.other_languages import Language
from tests.evaluate.sacrebleu_command import sacrebleu
from tests.hard.honest import ANSWERS
from tests.problems.pairs import GUESSES, PAIRS, REFERENCES, write
from tests.sandbox.multipl_e import checks_of, own_problem, prompt_of
from tests.sandbox.sandboxed import HEAD, TESTS, needs_language, needs_sandbox

ADD = {
    "task_id": "Own/0",
    "prompt": HEAD,
    "entry_point": "add",
    "canonical_solution": "    return a + b\n",
    "test": TESTS,
}
NEGATE = {
    "task_id": "Own/1",
    "prompt": 'def negate(a):\n    """The same with the other sign."""\n',
    "entry_point": "negate",
    "canonical_solution": "    return -a\n",
    "test": "def check(candidate):\n    assert candidate(2) == -2\n    assert candidate(0) == 0\n",
}


def write_file(file: Path, rows: list[Any]) -> Path:
    return Path(write(file, rows))


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    return write_file(tmp_path / "problems.jsonl", [ADD, NEGATE])


def sample(task_id: Any, completion: Any, **more: Any) -> dict[str, Any]:
    return {"task_id": task_id, "completion": completion, **more}


SAMPLES = [
    sample("Own/0", "    return a + b\n"),
    sample("Own/0", "    return a - b\n"),
    sample("Own/1", "```python\ndef negate(a):\n    return -a\n```"),
    sample("Own/0", "    raise SystemExit(0)\n"),
    sample("Own/1", "    while True:\n        pass\n"),
    sample("Own/1", "    return -a\n"),
]


def run(task: str, problems: Path, samples: Path, output: Path, *more: str) -> int:
    files = ["--problems", str(problems), "--samples", str(samples), "--output", str(output)]
    return cli.main(["score", task, *files, "--workers", "2", *more])


@needs_sandbox
def test_results(problems: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "new" / "results.json"
    samples = write_file(tmp_path / "samples.jsonl", SAMPLES)
    assert run("humaneval", problems, samples, output, "--timeout", "5", "--k", "1,2,3,4") == 0
    results = json.loads(output.read_text())
    # Own/0 has 1 of 3, Own/1 2 of 3: pass@2 is the mean of 1 - 1/3 and 1.
    assert results["metrics"]["pass@1"] == {
        "value": pytest.approx(0.5),
        "standard_error": pytest.approx(1 / 6),
        "count": 2,
    }
    assert results["pass@1"] == pytest.approx(0.5)
    assert results["metrics"]["pass@2"]["value"] == pytest.approx(5 / 6)
    assert results["metrics"]["pass@3"]["value"] == 1.0
    assert "pass@4" not in results["metrics"]
    assert "not reported: pass@4" in results["notes"][0]
    assert results["metrics"]["empty"]["value"] == 0
    assert results["statuses"] == {"passed": 3, "failed": 2, "timeout": 1, "error": 0, "skipped": 0}
    assert results["counts"]["problems_without_samples"] == 0
    assert results["settings"]["timeout"] == 5.0
    assert results["versions"]["python"]
    assert results["versions"]["sandbox"].startswith("bubblewrap")
    rows = [json.loads(line) for line in (output.parent / "results.samples.jsonl").read_text().splitlines()]
    assert [(row["task_id"], row["sample"], row["status"]) for row in rows] == [
        ("Own/0", 0, "passed"),
        ("Own/0", 1, "failed"),
        ("Own/1", 0, "passed"),
        ("Own/0", 2, "failed"),
        ("Own/1", 1, "timeout"),
        ("Own/1", 2, "passed"),
    ]
    printed = capsys.readouterr()
    assert "pass@1" in printed.out
    assert "0.5000" in printed.out


@needs_sandbox
def test_it_resumes(problems: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was run under the same settings is not run again; a changed sample, and a cut line, are."""
    output = tmp_path / "results.json"
    samples = write_file(tmp_path / "samples.jsonl", SAMPLES[:4])
    assert run("humaneval", problems, samples, output) == 0
    first = json.loads(output.read_text())
    ran: list[str] = []
    real = scoring.run_many

    def counted(attempts: Any, *rest: Any) -> Any:
        listed = list(attempts)
        ran.extend(attempt.answer for attempt in listed)
        return real(listed, *rest)

    monkeypatch.setattr(scoring, "run_many", counted)
    kept = outcomes_file_of(output)
    lines = kept.read_text().splitlines()
    kept.write_text("\n".join(lines[:3]) + "\n" + lines[3][:40])
    changed = [SAMPLES[0], sample("Own/0", "    return (a + b)\n"), *SAMPLES[2:4]]
    assert run("humaneval", problems, write_file(tmp_path / "samples.jsonl", changed), output) == 0
    assert sorted(ran) == sorted([changed[1]["completion"], SAMPLES[3]["completion"]])
    second = json.loads(output.read_text())
    assert second["counts"]["samples_passed"] == first["counts"]["samples_passed"] + 1
    ran.clear()
    assert run("humaneval", problems, tmp_path / "samples.jsonl", output, "--timeout", "9") == 0
    assert len(ran) == 4, "other limits, other outcomes"


@needs_sandbox
def test_stopped_and_started_again(problems: Path, tmp_path: Path) -> None:
    output = tmp_path / "results.json"
    slow = sample("Own/1", "    import time\n    time.sleep(600)\n")
    samples = write_file(tmp_path / "samples.jsonl", [SAMPLES[0], slow])
    command = [sys.executable, "-m", "ebft.cli", "score", "humaneval", "--problems", str(problems)]
    command += ["--samples", str(samples), "--output", str(output), "--timeout", "500", "--workers", "1"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    running = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    kept = outcomes_file_of(output)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (kept.is_file() and '"passed": true' in kept.read_text()):
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert running.returncode == cli.INTERRUPTED
    assert "resumes from here" in said
    assert not output.exists()
    assert '"passed": true' in kept.read_text()


@needs_sandbox
def test_problems_without_samples(problems: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "results.json"
    samples = write_file(tmp_path / "samples.jsonl", [sample("Own/1", "    return -a\n")])
    assert run("humaneval", problems, samples, output) == 0
    results = json.loads(output.read_text())
    assert results["problems_without_samples"] == ["Own/0"]
    assert results["pass@1"] == 1.0
    assert "1 of 2 problems have no sample" in capsys.readouterr().err


@needs_sandbox
def test_mbpp_ids(tmp_path: Path) -> None:
    row = {
        "task_id": 11,
        "text": "Add.",
        "code": "def add(a, b):\n    return a + b",
        "test_list": ["assert add(1, 2) == 3"],
    }
    problems = write_file(tmp_path / "problems.jsonl", [row])
    rows = [sample(name, row["code"]) for name in (11, "11", "MBPP/11", "Mbpp/11")]
    rows.append({"name": "11", "completion": "def add(a, b):\n    return 4"})
    output = tmp_path / "results.json"
    assert run("mbpp", problems, write_file(tmp_path / "samples.jsonl", rows), output, "--k", "1,4,5") == 0
    results = json.loads(output.read_text())
    assert results["pass@1"] == pytest.approx(0.8)
    assert results["pass@4"] == results["pass@5"] == 1.0


@needs_sandbox
@needs_language("js")
def test_several_languages_and_a_missing_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        {"name": "own", "language": name, "prompt": prompt_of(name, "mean"), "tests": checks_of(name, "mean")}
        for name in ("js", "php")
    ]
    problems = write_file(tmp_path / "problems.jsonl", rows)
    samples = [{"name": "own", "language": name, "completion": ANSWERS[name]["mean"][0]} for name in ("js", "php")]
    real = Language.missing
    monkeypatch.setattr(Language, "missing", lambda self: "no php here" if self.title == "PHP" else real(self))
    output = tmp_path / "results.json"
    assert run("multipl-e", problems, write_file(tmp_path / "samples.jsonl", samples), output) == 0
    results = json.loads(output.read_text())
    assert results["skipped_languages"] == {"php": "no php here"}
    assert results["statuses"]["skipped"] == 1
    assert results["statuses"]["failed"] == 0
    assert results["pass@1"] == 1.0
    assert list(results["by_language"]["php"]) == []
    assert results["versions"]["node"].startswith("v")
    one = tmp_path / "one.json"
    both = [samples[0]]
    assert run("multipl-e", problems, write_file(tmp_path / "js.jsonl", both), one, "--language", "JavaScript") == 0
    assert json.loads(one.read_text())["counts"]["problems"] == 1


BAD = {
    "unknown task": (SAMPLES, ["humanevil"], "unknown task 'humanevil', and no such folder; did you mean 'humaneval'?"),
    "no samples": ([], ["humaneval"], "samples.jsonl: the file is empty"),
    "unknown problem": ([sample("Own/7", "x")], ["humaneval"], "row 1: there is no problem 'Own/7'"),
    "no completion": ([SAMPLES[0], sample("Own/0", None)], ["humaneval"], "row 2 has no field 'completion'"),
    "completion is a list": ([sample("Own/0", ["x"])], ["humaneval"], "'completion' is a list, not a string"),
    "not an object": (["text"], ["humaneval"], "line 1 holds a string, not an object"),
    "timeout": (SAMPLES, ["humaneval", "--timeout", "nan"], "--timeout nan must be"),
    "unknown pair": ([sample("9", "x")], ["translation"], "row 1 is for the unknown task '9'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str, problems: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, arguments, message = BAD[name]
    samples = write_file(tmp_path / "samples.jsonl", rows)
    if arguments[0] == "translation":
        problems = write_file(problems, [{"src": "a", "ref": "b"}])
    before = sorted(tmp_path.iterdir())
    assert run(arguments[0], problems, samples, tmp_path / "results.json", *arguments[1:]) == cli.BAD_INPUT
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


def test_files_that_are_not_there(problems: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples = write_file(tmp_path / "samples.jsonl", SAMPLES)
    own = write_file(tmp_path / "out.samples.jsonl", SAMPLES)  # where the outcomes would go
    for given, output, message in (
        ((tmp_path / "no.jsonl", samples), tmp_path / "out.json", "no.jsonl: no such file"),
        ((problems, tmp_path / "no.jsonl"), tmp_path / "out.json", "no.jsonl: no such file"),
        ((problems, samples), tmp_path, "is a folder, or would overwrite problems or samples"),
        ((problems, samples), samples, "would overwrite problems or samples"),
        ((problems, own), tmp_path / "out.json", "would overwrite problems or samples"),
    ):
        assert run("humaneval", *given, output) == cli.BAD_INPUT
        assert message in capsys.readouterr().err


def test_without_a_sandbox_nothing_runs(
    problems: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    samples = write_file(tmp_path / "samples.jsonl", SAMPLES)
    assert run("humaneval", problems, samples, tmp_path / "out.json") == cli.BAD_INPUT
    said = capsys.readouterr().err
    assert "apt install bubblewrap" in said
    assert "--unsafe-exec" in said
    assert said.count("\n") == 1
    assert not list(tmp_path.glob("out*"))


def test_unsafe(problems: Path, tmp_path: Path) -> None:
    samples = write_file(tmp_path / "samples.jsonl", SAMPLES[:3])
    output = tmp_path / "results.json"
    assert run("humaneval", problems, samples, output, "--unsafe-exec") == 0
    results = json.loads(output.read_text())
    assert results["statuses"]["passed"] == 2
    assert results["versions"]["sandbox"] == "none"


@needs_sandbox
def test_hostile_text_stays_text(problems: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Messages come from programs: no control characters, one line, short."""
    loud = '    raise ValueError("\\x1b[31m\\n" + "x" * 5000 + "\\u2028")\n'
    output = tmp_path / "results.json"
    assert run("humaneval", problems, write_file(tmp_path / "samples.jsonl", [sample("Own/0", loud)]), output) == 0
    [row] = [json.loads(line) for line in outcomes_file_of(output).read_text().split("\n") if line]
    assert row["status"] == "failed"
    assert len(row["message"]) <= 300
    assert row["message"].isprintable()


def scored(problems: str, samples: str) -> dict[str, Any]:
    """The results of `ebft score translation`; `out.json` is beside the samples."""
    parser = argparse.ArgumentParser()
    score_command.add_arguments(parser)
    output = str(Path(samples).with_name("out.json"))
    command = ["translation", "--problems", problems, "--samples", samples, "--output", output]
    return score_command.score(parser.parse_args(command))


class TestTranslation:
    @pytest.fixture
    def problems(self, tmp_path: Path) -> str:
        return write(
            tmp_path / "problems.jsonl", [{"task_id": p.key, "src": p.source, "ref": p.references[0]} for p in PAIRS]
        )

    def test_one_sample_each(self, problems: str, tmp_path: Path) -> None:
        rows = [{"name": p.key, "completion": g} for p, g in zip(PAIRS, GUESSES, strict=True)][::-1]
        samples = write(tmp_path / "samples.jsonl", rows)
        found = scored(problems, samples)
        sentences = [json.loads(line) for line in (tmp_path / "out.samples.jsonl").read_text().splitlines()]
        expected = sacrebleu(tmp_path, GUESSES, [REFERENCES], "-m", "bleu")
        assert round(found["metrics"]["bleu"]["value"], 12) == expected["score"]
        assert found["metrics"]["bleu"]["standard_error"] > 0
        assert [row["task_id"] for row in sentences] == ["1", "2", "3", "4"]
        assert sentences[0]["sentence_bleu"] == pytest.approx(100)
        assert found["counts"] == {"problems": 4, "samples": 4}
        assert found["signatures"]["bleu"] == expected["signature"]

    def test_several_samples_give_best_of_k(self, problems: str, tmp_path: Path) -> None:
        rows = [{"task_id": p.key, "completion": g} for p in PAIRS for g in [*GUESSES, p.references[0]]]
        found = scored(problems, write(tmp_path / "samples.jsonl", rows))["metrics"]
        assert found["best_of_1_sentence_bleu"]["value"] < found["best_of_4_sentence_bleu"]["value"] < 100
        assert "best_of_16_bleu" not in found
        assert "bleu" not in found

    def test_problems_without_ids_go_by_row(self, tmp_path: Path) -> None:
        file = tmp_path / "problems.jsonl"
        file.write_text('{"src": "a", "ref": "b"}\n\n{"src": "c", "ref": "d"}\n')
        samples = write(tmp_path / "s.jsonl", [{"task_id": 1, "completion": "b"}, {"task_id": "2", "completion": "d"}])
        assert scored(str(file), samples)["metrics"]["chrf"]["value"] == pytest.approx(100)

    def test_gzipped_problems(self, problems: str, tmp_path: Path) -> None:
        packed = tmp_path / "problems.jsonl.gz"
        packed.write_bytes(gzip.compress(Path(problems).read_bytes()))
        samples = write(tmp_path / "s.jsonl", [{"task_id": p.key, "completion": "x"} for p in PAIRS])
        assert scored(str(packed), samples)["metrics"] == scored(problems, samples)["metrics"]

    def test_scores_without_naming_fields(self, tmp_path: Path) -> None:
        problems, samples = tmp_path / "test.en-zh.jsonl", tmp_path / "samples.jsonl"
        problems.write_text(json.dumps({"en": "Hello there", "zh": "你好世界和平"}) + "\n", encoding="utf-8")
        samples.write_text(json.dumps({"task_id": "1", "completion": "你好世界和平"}) + "\n", encoding="utf-8")
        found = scored(str(problems), str(samples))
        assert found["metrics"]["bleu"]["value"] == pytest.approx(100)
        assert found["settings"]["target_language"] == "zh"  # sacrebleu's tokenizer for Chinese


def test_one_process_for_one_file(problems: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of two, each would lose what the other has appended."""
    samples, output = write_file(tmp_path / "samples.jsonl", SAMPLES), tmp_path / "new" / "results.json"
    with locked(tmp_path / "new" / "results.json.lock"):
        assert run("humaneval", problems, samples, output) == 2
        assert list(output.parent.iterdir()) == [output.parent / "results.json.lock"]
    assert f"results.json is in use by process {os.getpid()} on " in capsys.readouterr().err
    assert run("humaneval", problems, tmp_path / "missing.jsonl", output) == 2
    assert not output.parent.exists(), "nothing came of it"


def test_programs_are_counted_by_problem_and_language(tmp_path: Path) -> None:
    known = [replace(own_problem(language), task_id="own") for language in ("js", "php")]
    rows = [
        {"name": "own", "language": language, "completion": text, **more}
        for language, text, more in (("js", "a", {}), ("php", "b", {"finish": "length"}), ("js", "c", {"finish": 3}))
    ]
    file = write_file(tmp_path / "samples.jsonl", rows)
    found = score_command.read_samples(str(file), known)
    assert [(one.problem.language, one.number, one.completion, one.finish) for one in found] == [
        ("js", 0, "a", ""),
        ("php", 0, "b", "length"),
        ("js", 1, "c", ""),
    ]
    write_file(file, [{"name": "own", "completion": "x"}])
    with pytest.raises(DataError, match="no problem 'own' in several languages"):
        score_command.read_samples(str(file), known)
