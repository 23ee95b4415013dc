"""`ebft eval` in this process on tiny models: what is written, resumed, refused, compared and scored. Tables, labels,
pictures, and paired differences on outcomes written by hand."""

import math
import os
import shutil
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ebft import cli, loading
from ebft.config.evaluation import EvalOptions
from ebft.errors import ConfigError, DataError
from ebft.evaluate import tables
from ebft.evaluate.generation import GREEDY, Completion, TransformersGenerator
from ebft.evaluate.scoring import ResumableRecords
from ebft.evaluate.tasks import ProblemSet, problem_sets, run_task, scored
from ebft.method.measures import TEMPERATURES, Estimate
from ebft.problems.problem import Question
from ebft.runtime.files import locked, read_json, read_jsonl, write_jsonl
from tests.models import tiny_model
from tests.problems.rows import write
from tests.sandbox.sandboxed import needs_sandbox
from tests.tiny_tokenizer import VOCABULARY

PAIRS = [{"de": f"Haus {n}" + "!" * n, "en": f"house {n}"} for n in range(6)]
ROWS = [{"prompt": f"{a}+{b}=", "completion": f"{a + b}, that is all"} for a in range(6) for b in range(6)]


pytestmark = pytest.mark.usefixtures("offline")


@pytest.fixture(scope="module")
def other_model(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same tokenizer and shape, other weights."""
    folder = shutil.copytree(tiny, tmp_path_factory.mktemp("models") / "other")
    tiny_model("llama", seed=9, vocab_size=VOCABULARY, num_hidden_layers=2).save_pretrained(folder)
    return folder


Run = Callable[..., dict[str, Any]]
TRANSLATION = "--translation-data {} --source-field de --target-field en --samples 4 --max-new-tokens 6 --batch-size 4"
CALIBRATION = (
    "--calibration-data {} --context-length 32 --horizon 4 --stride 8 --rollouts 2 --sequences 6 "
    "--profile-lengths 1,2,8 --profile-stride 8 --calibration-batch-size 2 --no-answer-only"
)


@pytest.fixture
def run(tiny: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Run:
    """`ebft eval` in this process; returns its results.json."""
    data = {"translation": TRANSLATION.format(write(tmp_path / "pairs.jsonl", PAIRS)).split()}
    data |= {"calibration": CALIBRATION.format(write(tmp_path / "rows.jsonl", ROWS)).split()}

    def start(output: Path, tasks: str, *more: object, models: tuple[Path, ...] = (), code: int = 0) -> dict[str, Any]:
        chosen = [word for task in tasks.split(",") for word in data.get(task, [])]
        named = [word for m in models or (tiny,) for word in ("--model", str(m))]
        found = cli.main(["eval", *named, "--tasks", tasks, "--output", str(output), *chosen, *map(str, more)])
        assert found == code, capfd.readouterr().err
        return read_json(output / "results.json") or {}

    return start


def metrics(results: dict[str, Any]) -> Any:
    return {task: (entry["metrics"], entry.get("profile")) for task, entry in results["tasks"].items()}


@pytest.mark.pictures
def test_everything_that_is_promised_is_written(run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    results = run(tmp_path / "out", "calibration,translation", "--seed", 3)
    calibration, translation = results["tasks"]["calibration"], results["tasks"]["translation"]
    temperatures = {"best_temperature", "answer_best_temperature"}
    losses = {"cross_entropy", "answer_cross_entropy", "answer_cross_entropy_without_end", "cfm", "whitened_proxy"}
    assert set(calibration["metrics"]) == losses | temperatures
    points = calibration["temperatures"]
    assert [point["temperature"] for point in points] == [0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5]
    assert points[5]["cross_entropy"] == calibration["metrics"]["cross_entropy"]
    assert [point["length"] for point in calibration["profile"]] == [1, 2, 8]
    assert {"greedy_bleu", "best_of_1_bleu", "best_of_4_sentence_chrf"} <= set(translation["metrics"])
    for name, value in [*calibration["metrics"].items(), *translation["metrics"].items()]:
        assert name in temperatures or value["standard_error"] >= 0
        assert value["count"] == 6
    assert (results["seed"], results["dtype"]) == (3, "float32")
    assert {"ebft", "torch", "transformers", "python"} <= set(results["versions"])
    rows = read_jsonl(tmp_path / "out" / "translation.samples.jsonl")
    assert {(row["task_id"], row["sample"]) for row in rows} == {(str(n), s) for n in range(1, 7) for s in range(4)}
    for picture in ("profile.png", "temperatures.png"):
        assert (tmp_path / "out" / picture).read_bytes().startswith(b"\x89PNG")
    printed, table = capfd.readouterr().out, (tmp_path / "out" / "results.md").read_text()
    assert "| cross-entropy, answer tokens at temperature 0.6 |" in table
    value = calibration["metrics"]["cfm"]
    shown = f"{value['value']:.4f} ± {value['standard_error']:.4f} (n=6)"
    for name in ("feature-matching loss at 8 tokens", "best_of_4_sentence_bleu", shown):
        assert name in printed
        assert name in table


def test_stopped_and_started_again(run: Run, tmp_path: Path, monkeypatch: Any) -> None:
    whole, original = run(tmp_path / "whole", "calibration,translation"), ResumableRecords.append
    for batches, left in ((2, "calibration"), (7, "translation.samples")):
        counted, out = iter(range(100)), tmp_path / left

        def append(self: ResumableRecords, rows: Any, counted: Any = counted, batches: int = batches) -> None:
            if next(counted) == batches:
                raise KeyboardInterrupt
            original(self, rows)

        with monkeypatch.context() as patched:
            patched.setattr(ResumableRecords, "append", append)
            run(out, "calibration,translation", code=130)
        file = out / f"{left}.jsonl"
        made = file.read_text()
        assert made
        file.write_text(made + '{"task_id": "1", "sam')  # what a killed run was writing
        results = run(out, "calibration,translation")
        assert file.read_text().startswith(made)
        assert file.read_text() == (tmp_path / "whole" / file.name).read_text()
        assert metrics(results) == metrics(whole)


def test_generated_is_kept_and_other_refused(
    run: Run, tiny: Path, tmp_path: Path, monkeypatch: Any, capfd: Any
) -> None:
    copied, out = (shutil.copytree(tiny, tmp_path / "model"),), tmp_path / "out"
    run(out, "calibration", "--sequences", 2, models=copied)
    before = (out / "calibration.jsonl").read_text()
    first = run(out, "calibration", models=copied)
    assert first["tasks"]["calibration"]["sequences"] == 6
    assert (out / "calibration.jsonl").read_text().startswith(before)
    both = run(out, "translation", models=copied)
    assert both["tasks"]["calibration"] == first["tasks"]["calibration"]
    with monkeypatch.context() as patched:
        patched.setattr(loading.Checkpoint, "load", lambda *_: pytest.fail("a model was loaded"))
        assert metrics(run(out, "translation", models=copied)) == metrics(both)
    run(out, "translation", "--seed", 2, models=copied, code=2)
    assert "was made with another seed; resume with the same settings" in capfd.readouterr().err
    os.utime(copied[0] / "model.safetensors", ns=(1, 1))  # new weights in the same folder
    run(out, "translation", models=copied, code=2)
    results = run(out, "translation", "--seed", 2, "--overwrite", models=copied)
    assert results["tasks"]["translation"]["metrics"] != both["tasks"]["translation"]["metrics"]


def test_models_share_a_table_and_a_space(run: Run, tiny: Path, other_model: Path, tmp_path: Path, capfd: Any) -> None:
    run(tmp_path / "out", "calibration", models=(tiny, other_model))
    assert f"features are those of {tiny}" in capfd.readouterr().err
    folders = [tmp_path / "out" / name for name in (tiny.name, "other")]
    mine, theirs = (tables.read_results(folder)["tasks"]["calibration"] for folder in folders)
    assert mine["features"] == theirs["features"]
    assert mine["metrics"] != theirs["metrics"]
    assert cli.main(["eval", "--compare", *map(str, folders), "--output", str(tmp_path / "both")]) == 0
    printed = capfd.readouterr().out
    for file in ("profile.png", "results.md"):
        assert (tmp_path / "both" / file).read_bytes() == (tmp_path / "out" / file).read_bytes()
    assert printed.splitlines()[0].split()[2:] == [tiny.name, "other", "other", "-", tiny.name]
    both = list(zip(*(read_jsonl(folder / "calibration.jsonl") for folder in folders), strict=True))
    assert len({other["contexts"] for _, other in both} - {0}) == 1  # so that the difference is a paired t's
    moved = [other["cfm"] - tiny["cfm"] for tiny, other in both if other["contexts"]]
    [line] = [line for line in printed.splitlines() if "feature-matching loss  " in line]
    assert line.endswith(f"{statistics.mean(moved):+.4f} ± {statistics.stdev(moved) / len(moved) ** 0.5:.4f}")


@needs_sandbox
def test_generated_without_a_sandbox_and_scored_without_a_model(
    run: Run, tiny: Path, other_model: Path, tmp_path: Path, monkeypatch: Any, capfd: Any
) -> None:
    """By a generator that knows some of the answers, in place of a model that knows none."""
    task = {"canonical_solution": "    return x + {0}\n", "entry_point": "add{0}", "prompt": "def add{0}(x):\n"}
    task |= {"task_id": "Test/{0}", "test": "def check(f):\n    assert f(1) == 1 + {0}\n"}
    rows = [{name: text.format(n) for name, text in task.items()} for n in range(3)]
    answering: list[Any] = []

    def stream(self: Any, prompts: Any, settings: Any, wanted: Any, keys: Any) -> Iterator[list[Any]]:
        answering.append((list(prompts), settings))
        for place, sample in wanted:
            right = sample == GREEDY or (place, sample) in [(0, 0), (0, 1), (1, 3)]
            text = rows[place]["canonical_solution"] if right else "    return None\n"
            yield [(place, sample, Completion(text, "stop", 5))]

    monkeypatch.setattr(TransformersGenerator, "stream", stream)
    problems = Path(write(tmp_path / "problems.jsonl", rows))
    arguments, folder, models = ("humaneval", "--samples", 4, "--humaneval"), tmp_path / "later", (other_model, tiny)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PATH", "/nonexistent")
        run(tmp_path / "at-once", *arguments, problems, code=2)
        assert answering == [], "nothing is generated that could not be scored"
        for _ in range(2):
            run(folder, *arguments, problems, "--no-score", models=models)
        assert len(answering) == 2, "there was nothing to do"
        found = tables.read_results(folder / tiny.name)["tasks"]["humaneval"]
        assert set(found["metrics"]) == {f"{d}{k}" for d in ("greedy_", "") for k in ("empty", "cut", "no_code")}
        assert "not scored yet; run `ebft score` on its folder" in capfd.readouterr().out
    run(tmp_path / "at-once", *arguments, problems, models=models)
    prompts, settings = answering[-1]  # the greedy answers beside the samples
    assert settings.temperature == 0.6
    assert all(row["prompt"].strip() in prompt for row, prompt in zip(rows, prompts, strict=True))
    assert (settings.prompt_style, settings.answer_start[-10:]) == ("chat", "```python\n"), "there is a template"
    moved, other = problems.rename(tmp_path / "moved.jsonl"), tmp_path / "other.jsonl"
    other.write_text(moved.read_text().replace("(x)", "(y)"))
    file = folder / tiny.name / "humaneval.samples.jsonl"
    whole = file.read_text()
    file.write_text("".join(whole.splitlines(keepends=True)[:5]))
    for option, said in (
        ("", "problems that have moved: --problems humaneval=FILE"),
        (f" --problems humaneval={other}", "they are not those the model was given"),
        (f" --problems humaneval={moved} --timeout 3", "--timeout is not for a folder"),
        (f" --problems humaneval={moved}", "holds 5 completions, not 4 of each of the 3 problems"),
    ):
        assert cli.main(f"score {folder}{option}".split()) == 2
        printed = capfd.readouterr()
        assert said in " ".join(printed.err.split())
    assert "humaneval  pass@1" in printed.out, "what is not whole stops nothing else"
    file.write_text(whole)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loading.Checkpoint, "load", lambda *_: pytest.fail("no model is needed"))
        assert cli.main(f"score {folder} --problems humaneval={moved}".split()) == 0
    later, at_once = (tables.read_results(place / tiny.name)["tasks"] for place in (folder, tmp_path / "at-once"))
    assert later == at_once
    values = {name: entry["value"] for name, entry in later["humaneval"]["metrics"].items() if "pass" in name}
    assert values == pytest.approx({"greedy_pass@1": 1.0, "pass@1": (2 / 4 + 1 / 4 + 0) / 3, "pass@4": 2 / 3})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("eval --model {}", "no tasks: give --tasks"),
        ("eval --model {} --tasks calibration", "the task calibration needs --calibration-data"),
        ("eval --model {} --tasks humaneval --humaneval gone.jsonl", "gone.jsonl: no such file"),
        ("eval --model {} --tasks humaneval --model ./nowhere", "nowhere': no such folder"),
        ("eval --model m --tasks humaneval --compare .", "is not there, or holds no results of `ebft eval`"),
        ("score humaneval", "needs --problems FILE, --samples FILE and --output FILE"),
        ("score .", "holds no results of `ebft eval`; score a file"),
        ("generate --prompt hello", "no model: give --model"),
        ("generate --model {}", "--output and --samples need prompts"),
        ("generate --model {} --file rows.jsonl", "no prompts; rows need 'prompt' or 'messages'"),
    ],
)
def test_bad_input_makes_no_folder(
    arguments: str, message: str, tiny: Path, tmp_path: Path, monkeypatch: Any, capfd: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "rows.jsonl", [{"text": "no prompt"}])
    assert cli.main([*arguments.format(tiny).split(), "--output", "out"]) == 2
    printed = capfd.readouterr()
    assert (printed.err.count("\n"), printed.out) == (1, "")
    assert message in printed.err
    assert not (tmp_path / "out").exists()


def test_one_process_for_one_folder(run: Run, tiny: Path, other_model: Path, tmp_path: Path, capfd: Any) -> None:
    """The folder that was given, and that of each model."""
    for place in ("out", "out/other"):
        with locked(tmp_path / place / "eval.lock"):
            run(tmp_path / "out", "translation", models=(tiny, other_model), code=2)
            assert f"{place} is in use by process {os.getpid()} on " in capfd.readouterr().err
            assert [file.name for file in tmp_path.rglob("*.lock")] == ["eval.lock"]


def test_the_hub_is_asked_for_the_datasets_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr("ebft.evaluate.tasks.load_problems", lambda _, source: asked.append(source) or [])
    for task in ("humaneval", "multipl-e"):
        with pytest.raises(DataError, match="no problems"):
            problem_sets(task, EvalOptions(languages=["rs"]))
    assert asked == ["openai/openai_humaneval", "nuprl/MultiPL-E:humaneval-rs"]


@pytest.mark.parametrize("language", [None, "python"])
def test_answers_of_any_kind_that_are_none_are_counted_once(language: str | None, tmp_path: Path) -> None:
    """Of texts that all score 30, and of programs that are not scored yet."""
    good, empty = Completion("def f(x):\n    return x\n", "stop", 3), Completion(" \n", "end", 1)
    answers = [good, Completion("I cannot help.", "end", 5), Completion(good.text * 9, "length", 10), empty, good]

    def stream(prompts: Any, settings: Any, wanted: Any, keys: Any) -> Iterator[list[tuple[int, int, Completion]]]:
        yield [(place, sample, answers[place]) for place, sample in wanted[::-1]]

    def score(rows: Sequence[dict[str, Any]], file: Path, ks: Any) -> dict[str, Any]:
        assert [(row["completion"], row["finish"]) for row in rows] == [(one.text, one.finish) for one in answers]
        return {"metrics": {"bleu": {"value": 30.0, "standard_error": 0.0, "count": 5}}}

    problems = ProblemSet("set", [*"abcde"], {"raw": [Question("English:")] * 5}, 10, score, None, language)
    subject: Any = SimpleNamespace(identity="model", generator=SimpleNamespace(stream=stream))
    options = EvalOptions(samples=0, prompt_style="raw", score=language is None)
    found = run_task("humaneval", options, subject, tmp_path, [problems])
    values = {name: entry["value"] for name, entry in found["metrics"].items()}
    own = {"greedy_no_code": 0.2} if language else {"greedy_bleu": 30.0}
    assert values == {"greedy_empty": 0.2, "greedy_cut": 0.2, **own}
    assert found["metrics"]["greedy_cut"]["standard_error"] == pytest.approx(0.2)
    assert found.get("unscored", False) == (language is not None)
    subject.generator.stream = lambda *_: pytest.fail("there is nothing to run its answers")
    found = run_task("humaneval", options, subject, tmp_path, [replace(problems, skipped="no compiler")])
    assert (found["metrics"], found["notes"]) == ({}, ["set is skipped: no compiler"])


def test_studies_replace_records_of_other_settings_only(tmp_path: Path) -> None:
    options = EvalOptions(replace_changed=True)
    ResumableRecords(tmp_path, "y", {"a": (1, 2)}, options).append([{"text": "one"}])
    assert [len(ResumableRecords(tmp_path, "y", {"a": a}, options).rows) for a in ([1, 2], 2)] == [1, 0]


# ---- tables ----------------------------------------------------------------------------------------------------------


Passed = dict[str, list[list[int]]]  # by set and problem, of each sample


def test_tables_and_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib.pyplot as plt

    drawn: list[Any] = []
    monkeypatch.setattr(plt, "close", drawn.append)
    results: dict[str, Any] = {"code": {"tasks": {}}}
    for name, s in (("base", 1), ("ebft", 2)):
        point = {"value": 2.0 * s, "standard_error": 0.1, "count": 3}
        profile = [{**point, "length": g, "value": g * s} for g in (1, 8, 128)]
        points = [{"temperature": t, "cross_entropy": point, "answer_cross_entropy": None} for t in TEMPERATURES]
        results[name] = {"tasks": {"calibration": {"metrics": {}, "profile": profile, "temperatures": points}}}
    moved = {"ebft": {("calibration", "cross_entropy_temperature_0.6"): Estimate(-0.5, 0.25)}}
    rows = tables.table(results, moved, temperatures=True)
    assert rows[0] == ("task", "metric", "code", "base", "ebft", "ebft - code")
    [row] = [row for row in rows if row[1] == "cross-entropy, all tokens at temperature 0.6"]
    assert row[2:] == ("", "2.0000 ± 0.1000 (n=3)", "4.0000 ± 0.1000 (n=3)", "-0.5000 ± 0.2500")
    assert len(rows) == 1 + 3 + len(TEMPERATURES), "no answer tokens, no rows"
    tables.draw(results, tmp_path)
    curves = [[*zip(*line.get_data(), strict=True)] for line in drawn[0].axes[0].lines]
    assert curves == [[(g, g * s) for g in (1, 8, 128)] for s in (1, 2)]


def test_labels_tell_models_apart_and_other_measurements_are_not_compared() -> None:
    assert tables.labels(["runs/a/final", "runs/b/final", "final"]) == ["a", "b", "final"]
    assert tables.labels(["one/a/final", "two/a"]) == ["one/a/final (1)", "two/a (2)"]

    def calibrated(taps: int = 1, **settings: Any) -> dict[str, Any]:
        entry = {"features": {"weights": "w", "taps": [taps], "model": "m"}, "settings": {"horizon": 8, **settings}}
        return {"tasks": {"calibration": entry}}

    for other, named in (
        (calibrated(horizon=4, stride=4), r"\(horizon: 8 and 4, stride: None and 4\)"),
        (calibrated(taps=2), r"calibrated differently \(taps: \[1\] and \[2\]\)"),
    ):
        with pytest.raises(ConfigError, match=named):
            tables.check_same_space({"a": calibrated(), "b": other})
    tables.check_same_space({"a": calibrated(), "b": calibrated(also_at_temperatures=[1.0], feature_model="x")})


def evaluated(folder: Path, passed: Passed) -> dict[str, Any]:
    """Results of sets of problems, with a list of outcomes for each problem, and the files beside them. What does not
    pass greedily is no program."""
    folder.mkdir()
    parts = []
    for name, problems in passed.items():
        for decoding, samples in ("greedy", slice(1)), ("samples", slice(None)):
            told = ({"status": "failed", "completion": ""}, {"status": "passed", "completion": "return 1"})
            rows = [
                {"task_id": f"{name}/{number}", "finish": "end"} | told[one]
                for number, outcomes in enumerate(problems)
                for one in outcomes[samples]
            ]
            for ending in (".scores.samples.jsonl", ".jsonl"):
                write_jsonl(folder / f"{name}.{decoding}{ending}", rows)
        metrics = {key: {"value": 0.5} for key in ("greedy_pass@1", "greedy_empty", "pass@1", "pass@2")}
        parts.append({"name": name, "language": "python", "metrics": metrics})
    return {"tasks": {"task": parts[0] if len(parts) == 1 else {"metrics": {}, "parts": parts}}}


def moved(tmp_path: Path, one: Passed, two: Passed) -> Any:
    folders = {"one": tmp_path / "one", "two": tmp_path / "two"}
    results = {name: evaluated(folders[name], passed) for name, passed in (("one", one), ("two", two))}
    return {metric: found for (_, metric), found in tables.against_first(results, folders)["two"].items()}


def error(values: list[float]) -> float:
    return statistics.stdev(values) / len(values) ** 0.5


def test_shares_of_problems_are_paired_by_problem_and_averaged_over_languages(tmp_path: Path) -> None:
    one, two = [[1, 1], [0, 0], [0, 1], [0, 0]], [[1, 1], [1, 0], [0, 1], [0, 0]]
    assert moved(tmp_path, {"humaneval": one}, {"humaneval": two}) == {
        "greedy_pass@1": (0.25, pytest.approx(error([0, 1, 0, 0]))),
        "greedy_empty": (-0.25, pytest.approx(error([0, 1, 0, 0]))),
        "pass@1": (0.125, pytest.approx(error([0, 0.5, 0, 0]))),
        "pass@2": (0.25, pytest.approx(error([0, 1, 0, 0]))),
    }
    one = {"m-js": [[0, 0], [0, 0]], "m-go": [[1, 1], [1, 1], [0, 0]]}
    two = {"m-js": [[1, 1], [0, 0]], "m-go": [[1, 1], [0, 0], [0, 0]]}
    (tmp_path / "several").mkdir()
    found = moved(tmp_path / "several", one, two)
    js, go = error([1, 0]), error([0, -1, 0])
    assert found["m-js pass@1"] == (0.5, pytest.approx(js))
    assert found["m-go pass@1"] == (pytest.approx(-1 / 3), pytest.approx(go))
    assert found["pass@1"] == (pytest.approx((0.5 - 1 / 3) / 2), pytest.approx((js**2 + go**2) ** 0.5 / 2))


def test_other_problems_and_other_text_are_not_paired(tmp_path: Path) -> None:
    assert moved(tmp_path, {"humaneval": [[1, 1]]}, {"humaneval": [[1, 1], [1, 0]]}) == {}
    write_jsonl(tmp_path / "calibration.jsonl", [{"sequence": 0, "tokens": 2, "log_probs": -4.0}])
    texts = {"first": "aa", "same": "aa", "other": "bb"}
    results = {name: {"tasks": {"calibration": {"text": text, "sequences": 1}}} for name, text in texts.items()}
    found = tables.against_first(results, dict.fromkeys(texts, tmp_path))
    assert [len(of_model) for of_model in found.values()] == [1, 0]


def test_languages_are_scored_apart_and_averaged(tmp_path: Path) -> None:
    """Those that cannot be run here have no metrics and do not count."""

    def problems(language: str, passed: float, skipped: str | None = None) -> ProblemSet:
        write_jsonl(tmp_path / f"{language}.prompts.jsonl", [{"task_id": "a", "prompt": "p"}])
        answer = {"task_id": "a", "sample": 0, "completion": "x", "finish": "stop"}
        write_jsonl(tmp_path / f"{language}.greedy.jsonl", [answer])
        found = {"metrics": {"pass@1": {"value": passed, "standard_error": 0.3, "count": 1}}}
        asked = {"raw": [Question("p")]}
        return ProblemSet(language, ["a"], asked, 8, lambda *_: dict(found), skipped, language)

    options = EvalOptions.from_values({"tasks": ["multipl-e"], "samples": 0, "prompt_style": "raw"})
    sets = [problems("js", 1.0), problems("cpp", 0.0), problems("rs", 1.0, skipped="no rustc")]
    found = scored(options, tmp_path, sets)
    expected = {"value": 0.5, "standard_error": pytest.approx(0.3 * math.sqrt(2) / 2), "count": 2}
    assert found["metrics"]["greedy_pass@1"] == expected
    assert found["metrics"]["js greedy_pass@1"]["value"] == 1.0
    assert (found["problems"], [part["name"] for part in found["parts"]]) == (2, ["js", "cpp", "rs"])
    assert found["notes"] == ["rs is skipped: no rustc"]
