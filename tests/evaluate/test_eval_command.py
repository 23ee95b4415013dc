from __future__ import annotations

import json
import os
import shutil
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from ebft import cli, loading
from ebft.evaluate import tables
from ebft.evaluate.generation import GREEDY, Completion, TransformersGenerator
from ebft.evaluate.tasks import ResumableRecords
from ebft.problems.multipl_e import MultiPLEProblem
from ebft.runtime.files import locked, read_jsonl
from ebft.sandbox.box import Sandbox, SandboxError
from tests.sandbox.sandboxed import needs_sandbox
from tests.tiny_tokenizer import END, byte_tokenizer, save_tiny_model

PAIRS = [{"de": f"Haus {n}" + "!" * n, "en": f"house {n}"} for n in range(6)]
ROWS = [{"prompt": f"{a}+{b}=", "completion": f"{a + b}, that is all"} for a in range(6) for b in range(6)]


pytestmark = pytest.mark.usefixtures("offline")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny", byte_tokenizer(pad=END))


@pytest.fixture(scope="module")
def other_model(model: Path) -> Path:
    """The same tokenizer and shape, other weights."""
    folder = model.parent / "other"
    shutil.copytree(model, folder)
    weights: Any = AutoModelForCausalLM.from_pretrained(model)
    with torch.no_grad():
        for parameter in weights.parameters():
            parameter.mul_(1.1)
    weights.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    folder = tmp_path_factory.mktemp("data")
    pairs, rows = folder / "pairs.jsonl", folder / "rows.jsonl"
    pairs.write_text("".join(json.dumps(row) + "\n" for row in PAIRS))
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    translation = (
        "--translation-data {} --source-field de --target-field en --samples 4 --max-new-tokens 6 --batch-size 4"
    )
    calibration = (
        "--calibration-data {} --context-length 32 --horizon 4 --stride 8 --rollouts 2 --sequences 6 "
        "--profile-lengths 1,2,8 --profile-stride 8 --calibration-batch-size 2 --no-answer-only"
    )
    return {"translation": translation.format(pairs).split(), "calibration": calibration.format(rows).split()}


Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(model: Path, data: dict[str, list[str]], capfd: pytest.CaptureFixture[str]) -> Run:
    """`ebft eval` in this process; returns its results.json."""

    def start(output: Path, tasks: str, *more: object, models: tuple[Path, ...] = (), code: int = 0) -> dict[str, Any]:
        chosen = [word for task in tasks.split(",") for word in data.get(task, [])]
        named = [word for m in models or (model,) for word in ("--model", str(m))]
        found = cli.main(["eval", *named, "--tasks", tasks, "--output", str(output), *chosen, *map(str, more)])
        assert found == code, capfd.readouterr().err
        file = output / "results.json"
        return json.loads(file.read_text()) if file.exists() else {}

    return start


def metrics(results: dict[str, Any]) -> Any:
    return {task: (entry["metrics"], entry.get("profile")) for task, entry in results["tasks"].items()}


@pytest.mark.pictures
def test_everything_that_is_promised_is_written(run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    results = run(tmp_path / "out", "calibration,translation", "--seed", 3)
    found = results["tasks"]
    temperatures = {"best_temperature", "answer_best_temperature"}
    losses = {"cross_entropy", "answer_cross_entropy", "answer_cross_entropy_without_end", "cfm", "whitened_proxy"}
    assert set(found["calibration"]["metrics"]) == losses | temperatures
    points = found["calibration"]["temperatures"]
    assert [point["temperature"] for point in points] == [0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5]
    assert points[5]["cross_entropy"] == found["calibration"]["metrics"]["cross_entropy"]
    assert [point["length"] for point in found["calibration"]["profile"]] == [1, 2, 8]
    expected = {"greedy_bleu", "greedy_chrf", "best_of_1_bleu", "best_of_4_sentence_chrf"}
    assert expected <= set(found["translation"]["metrics"])
    for entry in found.values():
        for name, value in entry["metrics"].items():
            assert name in temperatures or value["standard_error"] >= 0
            assert value["count"] == 6
    assert (results["seed"], results["dtype"]) == (3, "float32")
    assert {"ebft", "torch", "transformers", "python"} <= set(results["versions"])
    assert found["calibration"]["features"]["taps"] == [0, 1, 1]
    assert found["calibration"]["settings"]["horizon"] == 4
    rows = read_jsonl(tmp_path / "out" / "translation.samples.jsonl")
    assert sorted((row["task_id"], row["sample"]) for row in rows) == [
        (str(n), s) for n in range(1, 7) for s in range(4)
    ]
    for picture in ("profile.png", "temperatures.png"):
        assert (tmp_path / "out" / picture).read_bytes().startswith(b"\x89PNG")
    printed, table = capfd.readouterr().out, (tmp_path / "out" / "results.md").read_text()
    assert "| cross-entropy, answer tokens at temperature 0.6 |" in table
    value = found["calibration"]["metrics"]["cfm"]
    shown = f"{value['value']:.4f} ± {value['standard_error']:.4f} (n=6)"
    for name in ("cross-entropy, all tokens", "feature-matching loss at 8 tokens", "best_of_4_sentence_bleu", shown):
        assert name in printed
        assert name in table


def test_the_same_seed_gives_the_same_numbers_and_ends_that_are_left_out_are_noted(run: Run, tmp_path: Path) -> None:
    first = metrics(run(tmp_path / "a", "calibration,translation", "--batch-size", 3))
    assert metrics(run(tmp_path / "b", "calibration,translation")) == first
    results = run(tmp_path / "c", "calibration,translation", "--seed", 1)
    assert results["tasks"]["calibration"]["notes"] == []
    other = metrics(results)
    assert other["calibration"][0]["cfm"] != first["calibration"][0]["cfm"]
    assert other["calibration"][0]["cross_entropy"] == first["calibration"][0]["cross_entropy"]
    assert other["translation"][0]["greedy_chrf"] == first["translation"][0]["greedy_chrf"]
    assert other["translation"][0]["best_of_4_chrf"] != first["translation"][0]["best_of_4_chrf"]
    [note] = run(tmp_path / "d", "calibration", "--document-masks")["tasks"]["calibration"]["notes"]
    assert note in (tmp_path / "d" / "results.md").read_text()


@pytest.mark.parametrize(("batches", "left"), [(2, "calibration"), (7, "translation.samples")])
def test_stopped_and_started_again(
    batches: int, left: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(tmp_path / "whole", "calibration,translation")
    original, counted = ResumableRecords.append, iter(range(100))

    def append(self: ResumableRecords, rows: Any) -> None:
        if next(counted) == batches:
            raise KeyboardInterrupt
        original(self, rows)

    with monkeypatch.context() as patched:
        patched.setattr(ResumableRecords, "append", append)
        run(tmp_path / "out", "calibration,translation", code=130)
    file = tmp_path / "out" / f"{left}.jsonl"
    made = file.read_text()
    assert made
    file.write_text(made + '{"task_id": "1", "sam')  # what a killed run was writing
    results = run(tmp_path / "out", "calibration,translation")
    assert file.read_text().startswith(made)
    assert file.read_text() == (tmp_path / "whole" / file.name).read_text()
    assert metrics(results) == metrics(whole)


def test_a_finished_task_loads_no_model_and_another_joins_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path / "out", "calibration", "--sequences", 2)
    before = (tmp_path / "out" / "calibration.jsonl").read_text()
    first = run(tmp_path / "out", "calibration")
    assert first["tasks"]["calibration"]["sequences"] == 6
    assert (tmp_path / "out" / "calibration.jsonl").read_text().startswith(before)
    both = run(tmp_path / "out", "translation")
    assert both["tasks"]["calibration"] == first["tasks"]["calibration"]
    monkeypatch.setattr(loading.Checkpoint, "load", lambda *_: pytest.fail("a model was loaded"))
    assert metrics(run(tmp_path / "out", "calibration,translation")) == metrics(both)


def test_other_settings_and_weights_are_refused_until_overwritten(
    run: Run, model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    copied = shutil.copytree(model, tmp_path / "model")
    run(tmp_path / "out", "translation", "--seed", 1, models=(copied,))
    run(tmp_path / "out", "translation", "--seed", 2, models=(copied,), code=2)
    assert "was made with another seed; resume with the same settings" in capfd.readouterr().err
    os.utime(copied / "model.safetensors", ns=(1, 1))  # new weights in the same folder
    run(tmp_path / "out", "translation", "--seed", 1, models=(copied,), code=2)
    results = run(tmp_path / "out", "translation", "--seed", 2, "--overwrite", models=(copied,))
    assert metrics(results) == metrics(run(tmp_path / "other", "translation", "--seed", 2))


def test_an_adapter_is_evaluated_on_its_base(run: Run, model: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    base: Any = AutoModelForCausalLM.from_pretrained(model)
    adapted = get_peft_model(base, LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False))
    adapted.save_pretrained(tmp_path / "adapter")
    adapted.merge_and_unload().save_pretrained(tmp_path / "merged")
    byte_tokenizer(pad=END).save_pretrained(tmp_path / "merged")
    adapter, merged, plain = (
        run(tmp_path / f"of-{place.name}", "calibration,translation", "--feature-model", model, models=(place,))[
            "tasks"
        ]
        for place in (tmp_path / "adapter", tmp_path / "merged", model)
    )
    assert adapter["calibration"]["features"]["weights"] == plain["calibration"]["features"]["weights"]
    for task in ("calibration", "translation"):
        for name, value in merged[task]["metrics"].items():
            assert adapter[task]["metrics"][name]["value"] == pytest.approx(value["value"], rel=1e-3, abs=1e-4)
    assert adapter["calibration"]["metrics"] != plain["calibration"]["metrics"]


def test_models_share_a_table_a_plot_and_a_space_and_differences_are_paired(
    run: Run, model: Path, other_model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path / "out", "calibration", models=(model, other_model))
    assert f"features are those of {model}" in capfd.readouterr().err
    folders = [tmp_path / "out" / name for name in ("tiny", "other")]
    mine, theirs = (tables.read_results(folder)["tasks"]["calibration"] for folder in folders)
    assert mine["features"] == theirs["features"]
    assert mine["metrics"] != theirs["metrics"]
    compare = ["eval", "--compare", *map(str, folders), "--output", str(tmp_path / "both")]
    assert cli.main(compare) == 0
    printed = capfd.readouterr().out
    for file in ("profile.png", "results.md"):
        assert (tmp_path / "both" / file).read_bytes() == (tmp_path / "out" / file).read_bytes()
    assert printed.splitlines()[0].split()[2:] == ["tiny", "other", "other", "-", "tiny"]
    records = [read_jsonl(folder / "calibration.jsonl") for folder in folders]
    for metric, shown, count in (
        ("cfm", "feature-matching loss  ", "contexts"),
        ("cfm_at_2", "feature-matching loss at 2 tokens", "profile_contexts"),
    ):
        rows = [(mine, theirs) for theirs, mine in zip(*records, strict=True) if mine[count]]
        assert len({mine[count] for mine, _ in rows}) == 1  # so that the difference is a paired t's
        moved = [mine[metric] - theirs[metric] for mine, theirs in rows]
        expected = f"{statistics.mean(moved):+.4f} ± {statistics.stdev(moved) / len(moved) ** 0.5:.4f}"
        (line,) = [line for line in printed.splitlines() if shown in line]
        assert line.endswith(expected)
    (folders[0] / "calibration.jsonl").unlink()
    assert cli.main(compare) == 0
    assert " - tiny" not in capfd.readouterr().out
    # With features of their own, two models are not compared.
    run(tmp_path / "own", "calibration", models=(other_model,))
    assert cli.main([*compare, "--compare", str(tmp_path / "own")]) == 2
    assert "tiny and own were calibrated differently (weights: " in capfd.readouterr().err


PROBLEMS = [
    {
        "task_id": f"Test/{n}",
        "prompt": f"def add{n}(x):\n",
        "entry_point": f"add{n}",
        "test": f"def check(f):\n    assert f(1) == {n + 1}\n",
        "canonical_solution": f"    return x + {n}\n",
    }
    for n in range(3)
]


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    file = tmp_path / "problems.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in PROBLEMS))
    return file


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A generator that knows some of the answers, in place of a model that knows none."""
    asked: list[Any] = []

    def stream(self: Any, prompts: Any, settings: Any, wanted: Any, keys: Any) -> Iterator[list[Any]]:
        asked.append((list(prompts), settings))
        for place, sample in wanted:
            greedy = settings.temperature == 0 or sample == GREEDY
            right = greedy or (place, sample) in [(0, 0), (0, 1), (1, 3)]
            text = PROBLEMS[place]["canonical_solution"] if right else "    return None\n"
            yield [(place, sample, Completion(str(text), "stop", 5))]

    monkeypatch.setattr(TransformersGenerator, "stream", stream)
    return asked


def no_sandbox(self: Any) -> None:
    raise SandboxError("the sandbox needs `bwrap`")


@needs_sandbox
def test_completions_reach_the_sandbox_and_are_counted(
    run: Run, problems: Path, answering: list[Any], tmp_path: Path
) -> None:
    results = run(tmp_path / "out", "humaneval", "--humaneval", problems, "--samples", 4)
    found = results["tasks"]["humaneval"]["metrics"]
    assert found["greedy_pass@1"]["value"] == 1.0
    assert found["pass@1"]["value"] == pytest.approx((2 / 4 + 1 / 4 + 0) / 3)
    assert found["pass@4"]["value"] == pytest.approx(2 / 3)
    assert "pass@16" not in found
    [(prompts, settings)] = answering  # the greedy answers beside the samples
    assert settings.temperature == 0.6
    assert all(row["prompt"].strip() in prompt for row, prompt in zip(PROBLEMS, prompts, strict=True))
    assert settings.prompt_style == "chat", "the tokenizer has a template"
    assert settings.answer_start.endswith("```python\n")
    assert results["tasks"]["humaneval"]["settings"]["prompt_style"] == "chat"
    # What `ebft score` makes of the same generations.
    samples, scored = tmp_path / "out" / "humaneval.samples.jsonl", tmp_path / "scored.json"
    command = f"score humaneval --problems {problems} --samples {samples} --output {scored}"
    assert cli.main(command.split()) == 0
    assert json.loads(scored.read_text())["metrics"]["pass@4"] == found["pass@4"]


def test_a_language_without_its_toolchain_is_skipped(
    run: Run, answering: list[Any], tmp_path: Path, monkeypatch: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    for language, head in (("js", "function f(x) {"), ("rs", "fn f(x: isize) -> isize {")):
        row = {"name": "Test_0", "language": language, "prompt": f"{head}\n", "tests": "f(1);"}
        (tmp_path / f"humaneval-{language}.jsonl").write_text(json.dumps(row) + "\n")
    monkeypatch.setattr(MultiPLEProblem, "unavailable", lambda self: f"no compiler for {self.language}")
    monkeypatch.setattr(Sandbox, "check", lambda self: pytest.fail("there is nothing to run"))
    results = run(tmp_path / "out", "multipl-e", "--multipl-e", tmp_path, "--languages", "js,rs")
    assert answering == []
    assert results["tasks"]["multipl-e"]["metrics"] == {}
    assert "multipl-e-js  skipped: no compiler for js" in capfd.readouterr().out


@needs_sandbox
def test_generated_where_there_is_no_sandbox_and_scored_where_there_is_no_model(
    run: Run, problems: Path, answering: list[Any], tmp_path: Path, monkeypatch: Any, capfd: Any
) -> None:
    arguments, score = ("humaneval", "--humaneval", problems, "--samples", 4), ["score", str(tmp_path / "all")]
    with monkeypatch.context() as patched:
        patched.setattr(Sandbox, "check", no_sandbox)
        run(tmp_path / "at-once", *arguments, code=2)
        assert answering == [], "nothing is generated that could not be scored"
        found = run(tmp_path / "all" / "later", *arguments, "--no-score")["tasks"]["humaneval"]
        assert set(found["metrics"]) == {f"{d}{k}" for d in ("greedy_", "") for k in ("empty", "cut", "no_code")}
        assert "not scored yet; run `ebft score` on its folder" in capfd.readouterr().out
        run(tmp_path / "all" / "later", *arguments, "--no-score")
        assert len(answering) == 1  # nothing to do
        assert cli.main(score) == 2
        assert "the sandbox needs `bwrap`" in capfd.readouterr().err
    at_once = run(tmp_path / "at-once", *arguments)["tasks"]["humaneval"]
    monkeypatch.setattr(loading.Checkpoint, "load", lambda *_: pytest.fail("no model is needed"))
    assert cli.main(score) == 0
    assert "0.666" in capfd.readouterr().out
    later = json.loads((tmp_path / "all" / "later" / "results.json").read_text())["tasks"]["humaneval"]
    assert later == at_once
    tables_of = [(tmp_path / place / "results.md").read_text() for place in ("at-once", "all/later")]
    assert tables_of[0] == tables_of[1]
    # Scored is scored, also if scores are not asked for, or another task's options are given.
    run(tmp_path / "all" / "later", *arguments, "--no-score", "--mbpp", "other.jsonl")
    assert len(answering) == 2
    assert cli.main(score) == 0
    assert "programs" not in capfd.readouterr().err


@needs_sandbox
def test_a_folder_of_several_models_is_scored_with_its_comparison(
    run: Run, model: Path, other_model: Path, problems: Path, answering: list[Any], tmp_path: Path, capfd: Any
) -> None:
    arguments, folder = ("humaneval", "--humaneval", problems, "--samples", 2), tmp_path / "later"
    for place, more in (("at-once", []), ("later", ["--no-score"])):
        run(tmp_path / place, *arguments, *more, models=(other_model, model))
    moved, other = problems.rename(tmp_path / "moved.jsonl"), tmp_path / "other.jsonl"
    other.write_text(moved.read_text().replace("(x)", "(y)"))
    file = folder / "tiny" / "humaneval.samples.jsonl"
    whole = file.read_text()
    file.write_text("".join(whole.splitlines(keepends=True)[:5]))
    for problems_option, said in (
        ("", "problems that have moved: --problems humaneval=FILE"),
        (f" --problems humaneval={other}", "they are not those the model was given"),
        (f" --problems humaneval={moved} --timeout 3", "--timeout is not for a folder"),
        (f" --problems humaneval={moved}", "holds 5 completions, not 2 of each of the 3 problems"),
    ):
        assert cli.main(f"score {folder}{problems_option}".split()) == 2
        printed = capfd.readouterr()
        assert said in " ".join(printed.err.split())
    assert "humaneval  pass@1" in printed.out, "what is not whole stops nothing else"
    file.write_text(whole)
    assert cli.main(["score", str(folder), "--problems", f"humaneval={moved}"]) == 0
    assert (folder / "results.md").read_text() == (tmp_path / "at-once" / "results.md").read_text()
    assert cli.main(["score", str(tmp_path / "models")]) == 2
    assert "no such folder" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no tasks: give --tasks"),
        (["--tasks", "calibration"], "the task calibration needs --calibration-data"),
        (["--tasks", "translation"], "the task translation needs --translation-data"),
        (["--tasks", "humaneval", "--humaneval", "gone.jsonl"], "gone.jsonl: no such file"),
        (["--tasks", "humaneval", "--device", "gpu"], "device='gpu': "),
        (["--tasks", "humaneval", "--model", "./nowhere"], "nowhere': no such folder"),
    ],
)
def test_bad_input_is_one_line_and_makes_no_folder(
    arguments: list[str], message: str, model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["eval", "--model", str(model), *arguments, "--output", str(tmp_path / "out")]) == 2
    printed = capfd.readouterr()
    assert len(printed.err.splitlines()) == 1, printed.err
    assert message in printed.err
    assert printed.out == ""
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("place", ["out", "out/other"])
def test_one_process_for_one_folder(
    place: str, run: Run, model: Path, other_model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The folder that was given, and that of each model."""
    with locked(tmp_path / place / "eval.lock"):
        run(tmp_path / "out", "translation", models=(model, other_model), code=2)
        assert f"{place} is in use by process {os.getpid()} on " in capfd.readouterr().err
        assert [file.name for file in tmp_path.rglob("*.lock")] == ["eval.lock"]
