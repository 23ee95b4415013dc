"""`ebft train`: what it prints and leaves."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
import yaml
from torch.distributed import DistNetworkError
from transformers import AutoModelForCausalLM, AutoTokenizer

from ebft import cli
from ebft.errors import Preempted
from ebft.runtime.launch import LAUNCHED, PREEMPTED
from tests.command_line.commands import Finished, Refused, contents
from tests.tiny_tokenizer import byte_tokenizer, save_tiny_model


class TestTrain:
    def test_dry_run_prints_the_plan_and_an_example_and_writes_nothing(
        self, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        output = tmp_path / "out"
        assert cli.main(["train", "--config", str(recipe), "--output_dir", str(output), "--dry-run"]) == 0
        text = capsys.readouterr().out
        plan = dict(line.split("  ", 1) for line in text.split("\n\n")[0].splitlines())
        assert plan["documents"].strip().startswith("29 with ")
        assert " of 48 tokens, filled with documents that see those before them" in plan["training sequences"]
        assert plan["anchors per sequence"].strip() == "10.5 of at most 11, 2 rollouts of 4 tokens from each"
        assert plan["tokens per step"].strip().endswith("in 2 sequences")
        assert plan["steps"].strip().startswith("3 (")
        assert plan["compute per step"].strip().endswith("GFLOP (estimate)")
        assert "One sequence, with some of its anchors" in text
        assert "that is all" in text
        assert not output.exists()

    def test_dry_run_needs_no_output_folder(
        self, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "empty").mkdir()
        monkeypatch.chdir(tmp_path / "empty")
        assert cli.main(["train", "--config", str(recipe), "--dry-run"]) == 0
        assert "anchors per sequence" in capsys.readouterr().out
        assert contents(tmp_path / "empty") == {}

    def test_dry_run_refuses_a_feature_model_with_another_vocabulary(
        self, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        other = save_tiny_model(tmp_path / "other", byte_tokenizer(extra_tokens=2))
        assert cli.main(["train", "--config", str(recipe), "--feature_model", str(other), "--dry-run"]) == 2
        assert f"the tokenizer of {other} differs from the model's (261 and 259 tokens)" in capsys.readouterr().err

    def test_dry_run_leaves_a_run_that_is_there_alone_and_says_so(
        self, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        output = tmp_path / "out"
        output.mkdir()
        (output / "recipe.yaml").write_text("model: another\n")
        assert cli.main(["train", "--config", str(recipe), "--output_dir", str(output), "--dry-run"]) == 0
        assert contents(output) == {"recipe.yaml": b"model: another\n"}
        resume = f"ebft train --config {output}/recipe.yaml --resume"
        assert f"the run itself would be refused: output_dir={output} already holds a run" in (
            errors := capsys.readouterr().err
        )
        assert errors.rstrip().endswith(resume)

    def test_a_run_through_a_process_shows_before_and_after(self, finished: Finished) -> None:
        assert finished.done.returncode == 0, finished.done.stderr
        for part in ("before", "after", "cross-entropy", "feature-matching loss", str(finished.output / "final")):
            assert part in finished.done.stdout

    def test_what_a_run_leaves(self, finished: Finished, rows: Path, model: Path) -> None:
        output = finished.output
        metrics = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
        assert {1, 2, 3} <= {entry["step"] for entry in metrics if "reward" in entry}
        assert any("eval_cfm" in entry for entry in metrics)
        results = json.loads((output / "results.json").read_text())
        assert results["steps"] == 3
        assert set(results["before"]) >= {"eval_cfm", "eval_cfm_se", "eval_cross_entropy", "eval_cross_entropy_se"}
        assert results["after"]["eval_cross_entropy"] != results["before"]["eval_cross_entropy"]
        given = yaml.safe_load((output / "recipe.yaml").read_text())
        assert given["model"] == str(model)
        assert given["seed"] == 7
        resolved = json.loads((output / "resolved.json").read_text())
        assert (resolved["seed"], resolved["horizon"], resolved["whitening"]) == (7, 4, "reference")
        assert resolved["dataset"] == [str(rows)]
        assert resolved["prompt_kinds"] == ["prompt"]
        assert (output / "curves.png").read_bytes().startswith(b"\x89PNG")
        assert any((output / "samples").iterdir())
        assert {p.name for p in output.glob("checkpoint-*")} == {"checkpoint-2", "checkpoint-3"}

    def test_a_log_file_has_a_line_for_each_step_and_no_bar(self, finished: Finished) -> None:
        assert "step 1: reward " in finished.done.stderr
        lines = finished.done.stderr.splitlines()
        assert [line.split(":")[0] for line in lines if line.startswith("step ") and ": reward " in line] == [
            "step 1",
            "step 2",
            "step 3",
        ]
        assert "%|" not in finished.done.stderr

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
    def test_a_run_without_a_gpu_says_so(
        self, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], finished: Finished
    ) -> None:
        arguments = ["--output_dir", str(tmp_path / "out"), "--use_cpu", "false", "--max_steps", "1"]
        assert cli.main(["train", "--config", str(recipe), *arguments]) == 0
        words = "no GPU was found: computing on the CPU"
        assert words in capsys.readouterr().err
        assert words not in finished.done.stderr, "it was asked for"

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
    def test_days_on_a_cpu_have_to_be_asked_for(
        self, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("ebft.train.run.cpu_seconds", lambda *_: 5 * 24 * 3600.0)
        words = "this machine's CPU would take at least 5 days: too slow; use a GPU or a smaller model"
        arguments = ["--output_dir", str(tmp_path / "out"), "--use_cpu", "false", "--max_steps", "1"]
        assert cli.main(["train", "--config", str(recipe), *arguments, "--dry-run"]) == 0
        assert words in capsys.readouterr().err
        assert cli.main(["train", "--config", str(recipe), *arguments]) == 2
        assert words in capsys.readouterr().err
        assert not (tmp_path / "out").exists()

    def test_model_card_tells_recipe_data_and_results(self, finished: Finished, rows: Path) -> None:
        card = (finished.output / "final" / "README.md").read_text(encoding="utf-8")
        assert "Made by `ebft train --config recipe.yaml`" in card
        recipe = card.partition("```yaml\n")[2].partition("```")[0]
        assert yaml.safe_load(recipe) == yaml.safe_load((finished.output / "recipe.yaml").read_text())
        assert f"fine-tuned with Energy-Based Fine-Tuning on {rows}" in card
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

    def test_a_second_run_into_the_same_folder_is_refused(self, finished: Finished, refused: Refused) -> None:
        assert "already holds a run; choose another folder, or continue it with: " in refused(output=finished.output)

    def test_resume_of_a_finished_run_changes_neither_weights_nor_results(
        self, finished: Finished, tmp_path: Path
    ) -> None:
        output = tmp_path / "copy"
        shutil.copytree(finished.output, output)
        before = contents(output)
        assert cli.main([*finished.arguments, "--output_dir", str(output), "--resume"]) == 0
        after = contents(output)
        results = [json.loads(files["results.json"]) for files in (before, after)]
        assert results[1]["steps"] == 3
        assert after["final/model.safetensors"] == before["final/model.safetensors"]
        assert results[0]["before"] == results[1]["before"]
        assert results[0]["after"]["eval_cfm"] == results[1]["after"]["eval_cfm"]
        steps = [json.loads(line)["step"] for line in after["metrics.jsonl"].splitlines()]
        assert steps == sorted(steps)

    def test_resume_with_other_data_under_the_same_name_is_refused(
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

    def test_metrics_go_to_tensorboard(self, recipe: Path, tmp_path: Path) -> None:
        pytest.importorskip("tensorboard")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        output = tmp_path / "out"
        arguments = f"--output_dir {output} --report_to tensorboard --max_steps 2 --logging_steps 1".split()
        assert cli.main(["train", "--config", str(recipe), *arguments]) == 0
        events = list(output.rglob("events.out.tfevents*"))
        names: set[str] = set()
        for file in events:
            accumulator = EventAccumulator(str(file))
            accumulator.Reload()
            names |= set(accumulator.Tags()["scalars"])
        assert {"train/reward", "train/ebft/cfm", "eval/cfm"} <= names

    def test_pad_token_equal_to_the_end_token_unpacked(
        self, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        arguments = ["--packing", "false", "--document_masks", "--answer_only", "--max_steps", "1"]
        output = tmp_path / "out"
        assert cli.main(["train", "--config", str(recipe), "--output_dir", str(output), *arguments]) == 0
        assert (output / "final" / "model.safetensors").exists()


@pytest.mark.parametrize("launched", [False, True])
def test_who_says_that_another_process_died(
    launched: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The launcher ends the others with a signal, which may come before they notice, and says why itself."""
    stopped = Preempted("SIGTERM")
    stopped.__cause__ = DistNetworkError("no answer")
    monkeypatch.setenv(LAUNCHED, "1" if launched else "")
    assert cli._failed(stopped, folder=tmp_path) == PREEMPTED
    assert ("stopped by SIGTERM" in capsys.readouterr().err) == (not launched)


# As torch says it.
FULL = (
    "CUDA out of memory. Tried to allocate 1024.00 MiB. GPU 0 has a total capacity of 139.80 GiB of which 159.19 MiB "
    "is free. Process 857 has 66.00 MiB memory in use. Including non-PyTorch memory, this process has 23.01 GiB memory "
    "in use. Of the allocated memory 21.40 GiB is allocated by PyTorch, and 531.75 MiB is reserved by PyTorch but "
    "unallocated. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=..."
)
LACK = FULL[: FULL.index(" is free. Process")]


class TestMemoryRunsOut:
    def test_of_training(
        self,
        recipe: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        def train(*_: object) -> None:
            raise torch.OutOfMemoryError(FULL)

        monkeypatch.setattr("ebft.train.run.train", train)
        assert cli.main(["train", "--config", str(recipe), "--output_dir", str(tmp_path / "out")]) == cli.FAILED
        said = capsys.readouterr().err
        assert f"ebft: {LACK}" in said
        assert "make batches smaller" in said
        assert "Traceback" not in said

    def test_of_other_commands(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        monkeypatch.setitem(cli.COMMANDS, "eval", (Mock(side_effect=torch.OutOfMemoryError(FULL)), ""))
        assert cli.main(["eval"]) == cli.FAILED
        said = capsys.readouterr().err
        assert LACK in said
        assert said.endswith("; the same command resumes from here\n")

    def test_other_errors_stay_what_they_are(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(cli.COMMANDS, "eval", (Mock(side_effect=RuntimeError("something else")), ""))
        with pytest.raises(RuntimeError, match="something else"):
            cli.main(["eval"])
