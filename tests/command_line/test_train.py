"""`ebft train`: what it prints and leaves, and what it refuses in one line before anything is written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from ebft import EBFTTrainer, cli
from ebft.errors import TrainingDiverged
from tests.command_line.commands import Finished, Refused, contents
from tests.tiny_tokenizer import byte_tokenizer, save_tiny_model


def train(recipe: Path, output: Path, *arguments: object) -> int:
    return cli.main(["train", "--config", str(recipe), "--output_dir", str(output), *map(str, arguments)])


class TestDryRun:
    def test_it_prints_the_plan_and_an_example_and_writes_nothing(
        self, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "empty").mkdir()
        monkeypatch.chdir(tmp_path / "empty")
        assert cli.main(["train", "--config", str(recipe), "--dry-run"]) == 0, "no output folder is needed"
        text = capsys.readouterr().out
        plan = dict(line.split("  ", 1) for line in text.split("\n\n")[0].splitlines())
        assert plan["trains on"].strip().endswith(" tokens of 29 documents")
        assert plan["steps"].strip().startswith("3")
        assert "that is all" in text
        assert contents(tmp_path / "empty") == {}

    def test_it_refuses_a_feature_model_with_another_vocabulary(
        self, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        other = save_tiny_model(tmp_path / "other", byte_tokenizer(extra_tokens=2))
        assert train(recipe, tmp_path / "out", "--feature_model", other, "--dry-run") == 2
        assert f"the tokenizer of {other} differs from the model's (261 and 259 tokens)" in capsys.readouterr().err

    def test_it_says_that_a_run_would_be_refused(
        self, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "recipe.yaml").write_text("model: another\n")
        assert train(recipe, tmp_path / "out", "--dry-run") == 0
        assert contents(tmp_path / "out") == {"recipe.yaml": b"model: another\n"}
        assert "already holds a run" in capsys.readouterr().err


class TestRun:
    def test_what_it_prints(self, finished: Finished) -> None:
        assert finished.done.returncode == 0, finished.done.stderr
        for part in ("before", "after", "cross-entropy", "feature-matching loss", str(finished.output / "final")):
            assert part in finished.done.stdout
        lines = [line for line in finished.done.stderr.splitlines() if line.startswith("step ") and ": reward " in line]
        assert [line.split(":")[0] for line in lines] == ["step 1", "step 2", "step 3"]
        assert "%|" not in finished.done.stderr, "a log file has no bar"
        assert "no GPU was found" not in finished.done.stderr, "it was asked for"

    def test_what_it_leaves(self, finished: Finished, rows: Path, model: Path) -> None:
        output = finished.output
        metrics = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
        assert {1, 2, 3} <= {entry["step"] for entry in metrics if "reward" in entry}
        results = json.loads((output / "results.json").read_text())
        assert results["steps"] == 3
        assert set(results["before"]) >= {"eval_cfm", "eval_cfm_se", "eval_cross_entropy", "eval_cross_entropy_se"}
        assert results["after"]["eval_cross_entropy"] != results["before"]["eval_cross_entropy"]
        given = yaml.safe_load((output / "recipe.yaml").read_text())
        assert (given["model"], given["seed"]) == (str(model), 7)
        resolved = json.loads((output / "resolved.json").read_text())
        assert (resolved["seed"], resolved["horizon"], resolved["dataset"]) == (7, 4, [str(rows)])
        assert (output / "curves.png").read_bytes().startswith(b"\x89PNG")
        assert {p.name for p in output.glob("checkpoint-*")} == {"checkpoint-2", "checkpoint-3"}
        card = (output / "final" / "README.md").read_text(encoding="utf-8")
        assert yaml.safe_load(card.partition("```yaml\n")[2].partition("```")[0]) == given
        assert "| cross-entropy, all tokens |" in card

    def test_plain_transformers_loads_the_model_and_generates(self, finished: Finished, model: Path) -> None:
        tokenizer = AutoTokenizer.from_pretrained(finished.output / "final")
        trained = AutoModelForCausalLM.from_pretrained(finished.output / "final")
        prompt = tokenizer("1+1=", return_tensors="pt")
        generated = trained.generate(**prompt, max_new_tokens=5, do_sample=False, pad_token_id=tokenizer.pad_token_id)
        assert generated.shape[1] > prompt["input_ids"].shape[1]
        weight = "model.layers.0.self_attn.q_proj.weight"
        original = AutoModelForCausalLM.from_pretrained(model)
        assert not trained.state_dict()[weight].equal(original.state_dict()[weight])

    def test_resume_of_a_finished_run_changes_neither_weights_nor_results(
        self, finished: Finished, tmp_path: Path
    ) -> None:
        output = tmp_path / "copy"
        shutil.copytree(finished.output, output)
        before = contents(output)
        assert cli.main([*finished.arguments, "--output_dir", str(output), "--resume"]) == 0
        after = contents(output)
        results = [json.loads(files["results.json"]) for files in (before, after)]
        assert after["final/model.safetensors"] == before["final/model.safetensors"]
        assert results[0]["before"] == results[1]["before"]
        assert results[0]["after"]["eval_cfm"] == results[1]["after"]["eval_cfm"]
        steps = [json.loads(line)["step"] for line in after["metrics.jsonl"].splitlines()]
        assert steps == sorted(steps)

    def test_other_data_under_the_same_name_are_refused(
        self, finished: Finished, rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        output = tmp_path / "copy"
        shutil.copytree(finished.output, output)
        before, text = contents(output), rows.read_text()
        lines = text.splitlines()
        try:
            rows.write_text("\n".join([*lines[1:], lines[0]]) + "\n")  # as many documents and tokens, in another order
            assert cli.main([*finished.arguments, "--output_dir", str(output), "--resume"]) == 2
        finally:
            rows.write_text(text)
        assert "the dataset has changed since the run" in capsys.readouterr().err
        assert contents(output) == before

    def test_a_run_that_has_diverged_says_where_to_begin_anew(
        self, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def check(trainer: EBFTTrainer, name: str, *_: Any) -> None:
            if trainer.state.global_step == 2 and name == "mean reward":
                raise TrainingDiverged("the mean reward is 1e9 at step 3")

        monkeypatch.setattr(EBFTTrainer, "stop_beyond", check)
        assert train(recipe, tmp_path / "out") == 1
        last = tmp_path / "out" / "checkpoint-2"
        assert capsys.readouterr().err.splitlines()[-2:] == [
            "ebft: the mean reward is 1e9 at step 3",
            f"ebft: the last good checkpoint is {last}; a new run can begin there: --model {last}",
        ]

    def test_metrics_go_to_tensorboard(self, recipe: Path, tmp_path: Path) -> None:
        accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
        assert train(recipe, tmp_path / "out", "--report_to", "tensorboard", "--max_steps", 2) == 0
        names: set[str] = set()
        for file in tmp_path.rglob("events.out.tfevents*"):
            accumulator = accumulators.EventAccumulator(str(file))
            accumulator.Reload()
            names |= set(accumulator.Tags()["scalars"])
        assert {"train/reward", "train/ebft/cfm", "eval/cfm"} <= names


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--lr_scheduler_type", "constantly"], "constantly is not a valid SchedulerType"),
        (["--dataset", "nothing.jsonl"], "nothing.jsonl: no such file or folder"),
        (["--dataset", "some/data"], "HF_HUB_OFFLINE is set"),
        (["--model", "./no-model"], "no such folder"),
        (["--model", "smollm2-135m"], "run `ebft fetch smollm2-135m` first"),
        (["--feature_layers", "99"], "layer numbers up to 2"),
        (["--answer_only", "--horizon", "40", "--stride", "1"], "the longest answer has "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_settings_that_do_not_fit(arguments: list[str], words: str, refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()  # which may be made; a recipe in it would make the next try look like another run
    assert words in refused(*arguments)


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("checkpoint-5/model.safetensors", "already holds a run"),
        ("recipe.yaml", "already holds a run; choose another folder, or continue it with: "),
        ("thesis.tex", "is not empty and holds no run"),
    ],
)
def test_folders_that_are_taken(file: str, words: str, refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "used" / file).parent.mkdir(parents=True)
    (tmp_path / "used" / file).write_text("model: another\n")
    assert words in refused(output=tmp_path / "used")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("columns.jsonl", b'{"question": "a", "answer": "b"}\n', "it has 'question', 'answer'"),
        ("one.jsonl", b'{"text": "a"}\n', "one document cannot be split; set validation_split=0"),
        ("short.jsonl", b'{"text": "ab"}\n' * 20, "the longest document has 3 tokens"),
        ("deep.json", b"[" * 100_000, "deep.json"),
        ("digits.jsonl", b'{"text": ' + b"9" * 5000 + b"}\n", "digits.jsonl"),
    ],
    ids=str,
)
def test_data_that_cannot_be_used(name: str, content: bytes, words: str, refused: Refused, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    assert words in refused("--dataset", tmp_path / name, "--document_masks")


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("model.safetensors", lambda content: content[: len(content) // 2]),
        ("tokenizer.json", lambda _: b'{"version": "1.0", "model": {"type": "BPE", "vocab": 5}}'),
        ("config.json", lambda _: b'{"a":' * 50_000),
    ],
    ids=["weights cut", "another tokenizer", "deep settings"],
)
def test_damaged_models(
    file: str, damage: Callable[[bytes], bytes], refused: Refused, model: Path, tmp_path: Path
) -> None:
    shutil.copytree(model, tmp_path / "broken")
    (tmp_path / "broken" / file).write_bytes(damage((tmp_path / "broken" / file).read_bytes()))
    assert f"model='{tmp_path / 'broken'}' cannot be loaded: " in refused("--model", tmp_path / "broken")
