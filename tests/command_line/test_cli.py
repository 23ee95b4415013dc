from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer

from ebft import EBFTTrainer, cli
from ebft.config.method import MethodConfig
from ebft.config.model_and_data import DataConfig, ModelConfig
from ebft.config.running import RunningConfig
from ebft.errors import TrainingDiverged
from tests.tiny_tokenizer import END, byte_tokenizer, save_tiny_model

ROWS = [{"prompt": f"{a}+{b}=", "completion": f"{a + b}, that is all"} for a in range(6) for b in range(6)]
SETTINGS = {
    "context_length": 48,
    "horizon": 4,
    "stride": 4,
    "samples": 2,
    "per_device_train_batch_size": 2,
    "max_steps": 3,
    "logging_steps": 1,
    "save_steps": 2,
    "samples_every": 2,
    "validation_split": 0.2,
    "validation_sequences": 4,
    "learning_rate": 1e-4,
    "use_cpu": True,
}


@pytest.fixture(autouse=True)
def away_from_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EBFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import datasets
    import huggingface_hub

    # The libraries read the variable only when they are first imported.
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"), byte_tokenizer(pad=END))


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("data") / "rows.jsonl", ROWS)


@pytest.fixture(scope="module")
def recipe(model: Path, rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("recipe") / "recipe.yaml"
    file.write_text(yaml.safe_dump({**SETTINGS, "model": str(model), "dataset": str(rows)}))
    return file


def write_rows(file: Path, rows: list[Any]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def ebft(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **variables}
    command = [sys.executable, "-m", "ebft.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=150)


@dataclass
class Finished:
    arguments: list[str]
    output: Path
    done: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def finished(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A run of three steps through a process, once for all the tests that look at it."""
    folder = tmp_path_factory.mktemp("run")
    arguments = ["train", "--config", str(recipe), "--output_dir", str(folder / "out"), "--seed", "7"]
    return Finished(arguments, folder / "out", ebft(*arguments, EBFT_CACHE=str(folder / "cache")))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


Refused = Callable[..., str]


@pytest.fixture
def refused(recipe: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Refused:
    """Runs `ebft train`, which must give one line on standard error, code 2 and no output folder; returns the line."""

    def run(*arguments: object, output: Path | None = None) -> str:
        folder = output or tmp_path / "out"
        before = contents(folder) if folder.is_dir() else None
        capfd.readouterr()
        code = cli.main(["train", "--config", str(recipe), "--output_dir", str(folder), *map(str, arguments)])
        printed = capfd.readouterr()
        lines = printed.err.splitlines()
        assert code == 2, printed
        assert len(lines) == 1, printed.err
        assert lines[0].startswith("ebft: ")
        assert printed.out == ""
        assert (contents(folder) if folder.is_dir() else None) == before
        return lines[0]

    return run


class TestCommands:
    def test_help_through_a_process(self) -> None:
        done = ebft("--help")
        assert done.returncode == 0
        assert not done.stderr
        for command in ("ebft train", "ebft fetch smollm2-135m", "ebft env"):
            assert command in done.stdout

    def test_without_a_command_the_usage_is_shown(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main([]) == 2
        assert "usage: ebft" in capsys.readouterr().out

    def test_version(self, capsys: pytest.CaptureFixture[str]) -> None:
        import ebft as package

        assert cli.main(["--version"]) == 0
        assert capsys.readouterr().out.strip() == package.__version__

    def test_unknown_command_suggests_the_nearest(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["trian"]) == 2
        assert capsys.readouterr().err == (
            "ebft: unknown command 'trian'; there is train, sft, rlvr, plan, sweep, compare, export, eval, score, "
            "fetch, env; did you mean 'train'?\n"
        )

    def test_train_help_is_grouped_and_holds_every_setting(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["train", "--help"]) == 0
        text = capsys.readouterr().out
        titles = ["The model", "The data", "The method", "The frozen feature network", "Running", "Everything of"]
        places = [text.index(f"\n{title}") for title in titles]
        assert places == sorted(places)
        own = [f.name for cls in (MethodConfig, RunningConfig, ModelConfig, DataConfig) for f in fields(cls)]
        for name in [*own, "output_dir", "learning_rate", "max_steps", "report_to"]:
            assert f"  --{name} " in text, name
        for flag in ("--resume", "--dry-run", "--config"):
            assert flag in text
        method, features = places[2], places[3]
        assert method < text.index("--horizon ") < features < text.index("--feature_layers ")
        assert "G: tokens of a rollout [8]" in text

    def test_env_names_versions_and_hardware(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["env"]) == 0
        lines = capsys.readouterr().out.splitlines()
        found = dict(line.split("  ", 1) for line in lines)
        assert {"platform", "python", "ebft", "torch", "transformers", "peft", "cpu cores"} <= set(found)
        assert any(line.startswith("gpu") for line in lines)

    @pytest.mark.parametrize("arguments", [["env", "--verbose"], ["fetch"], ["fetch", "a", "b"]])
    def test_wrong_arguments_of_the_small_commands(
        self, arguments: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as caught:
            cli.main(arguments)
        assert caught.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("ebft: ")

    def test_fetch_of_an_unknown_model(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["fetch", "smollm2-135"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line == "ebft: unknown model 'smollm2-135'; there is smollm2-135m; did you mean 'smollm2-135m'?"


class TestFlags:
    @pytest.mark.parametrize(
        ("arguments", "file", "values"),
        [
            (["--config", "a.yaml", "--horizon", "4"], "a.yaml", {"horizon": "4"}),
            (["--horizon=4", "--config=a.yaml"], "a.yaml", {"horizon": "4"}),
            (["--learning-rate", "1e-5"], None, {"learning_rate": "1e-5"}),
            (["--lora", "--packing", "false"], None, {"lora": True, "packing": "false"}),
            (
                ["--dataset", "a.jsonl", "b.jsonl", "--seed", "1"],
                None,
                {"dataset": ["a.jsonl", "b.jsonl"], "seed": "1"},
            ),
            (["--max_steps", "-1"], None, {"max_steps": "-1"}),
            (["--run_name=a=b"], None, {"run_name": "a=b"}),
        ],
    )
    def test_are_read(self, arguments: list[str], file: str | None, values: dict[str, Any]) -> None:
        assert cli._flags(arguments) == (file, values)

    @pytest.mark.parametrize("arguments", [["recipe.yaml"], ["-x"], ["--config"], ["--config", "a", "b"]])
    def test_that_make_no_sense(self, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["train", *arguments]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("ebft: ")


class TestTrain:
    def test_dry_run_prints_the_plan_and_an_example_and_writes_nothing(
        self, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        output = tmp_path / "out"
        assert cli.main(["train", "--config", str(recipe), "--output_dir", str(output), "--dry-run"]) == 0
        text = capsys.readouterr().out
        plan = dict(line.split("  ", 1) for line in text.split("\n\n")[0].splitlines())
        assert plan["documents"].strip().startswith("29 with ")
        assert plan["training sequences"].strip().endswith("of 48 tokens")
        assert plan["anchors per sequence"].strip() == "10.5 of at most 11, 2 rollouts of 4 tokens from each"
        assert plan["tokens per step"].strip().endswith("in 2 sequences")
        assert plan["steps"].strip().startswith("3 (")
        assert plan["compute per step"].strip().endswith("GFLOP (estimate)")
        assert plan["memory"].strip().endswith("MiB (estimate)")
        assert "One sequence, with some of its anchors" in text
        assert "that is all" in text
        assert not output.exists()

    def test_dry_run_leaves_a_run_that_is_there_alone(self, recipe: Path, tmp_path: Path) -> None:
        output = tmp_path / "out"
        output.mkdir()
        (output / "recipe.yaml").write_text("model: another\n")
        assert cli.main(["train", "--config", str(recipe), "--output_dir", str(output), "--dry-run"]) == 0
        assert contents(output) == {"recipe.yaml": b"model: another\n"}

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
        assert (output / "curves.png").read_bytes().startswith(b"\x89PNG")
        assert any((output / "samples").iterdir())
        assert {p.name for p in output.glob("checkpoint-*")} == {"checkpoint-2", "checkpoint-3"}

    def test_a_run_shows_its_progress(self, finished: Finished) -> None:
        assert "step 1: reward " in finished.done.stderr
        assert "3/3" in finished.done.stderr

    def test_a_log_file_has_a_line_for_each_step_and_few_bars(self, finished: Finished) -> None:
        shown = finished.done.stderr.replace("\r", "\n").splitlines()
        assert [line.split(":")[0] for line in shown if line.startswith("step ")] == ["step 1", "step 2", "step 3"]
        assert sum("%|" in line and "/3 [" in line for line in shown) <= 3

    def test_model_card_tells_command_data_and_results(self, finished: Finished, rows: Path) -> None:
        card = (finished.output / "final" / "README.md").read_text(encoding="utf-8")
        assert shlex.join(["ebft", *finished.arguments]) in card
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
        assert "already holds a run; continue it with --resume" in refused(output=finished.output)

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


class TestBadInput:
    def test_bad_recipe_through_a_process(self, recipe: Path, tmp_path: Path) -> None:
        done = ebft("train", "--config", recipe, "--output_dir", tmp_path / "out", "--horizen", 4)
        assert done.returncode == 2
        assert done.stderr == "ebft: unknown setting 'horizen'; did you mean 'horizon'?\n"
        assert done.stdout == ""
        assert not (tmp_path / "out").exists()

    def test_missing_file(self, refused: Refused, tmp_path: Path) -> None:
        line = refused("--dataset", tmp_path / "nothing.jsonl")
        assert line == f"ebft: {tmp_path}/nothing.jsonl: no such file or folder"

    def test_a_damaged_model(self, refused: Refused, model: Path, tmp_path: Path) -> None:
        shutil.copytree(model, tmp_path / "damaged")
        (tmp_path / "damaged" / "model.safetensors").write_text("garbage")
        assert "damaged' cannot be loaded: " in refused("--model", tmp_path / "damaged")

    def test_an_error_does_not_stand_on_the_line_of_a_progress_bar(self, capsys: pytest.CaptureFixture[str]) -> None:
        with tqdm(total=3, file=sys.stderr) as bar:
            bar.update()
            assert cli._print_error("something is wrong") == 2
        assert capsys.readouterr().err.splitlines()[-1] == "ebft: something is wrong"

    def test_a_run_that_has_diverged_says_where_to_begin_anew(
        self, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def check(trainer: EBFTTrainer, step: int) -> Callable[[float], None]:
            def found(reward: float) -> None:
                if step == 3:
                    raise TrainingDiverged("the mean reward is 1e9 at step 3")

            return found

        monkeypatch.setattr(EBFTTrainer, "_reward_check", check)
        assert cli.main(["train", "--config", str(recipe), "--output_dir", str(tmp_path / "out")]) == 1
        last = tmp_path / "out" / "checkpoint-2"
        assert capsys.readouterr().err.splitlines()[-2:] == [
            "ebft: the mean reward is 1e9 at step 3",
            f"ebft: the last good checkpoint is {last}; a new run can begin there: --model {last}",
        ]
        monkeypatch.undo()
        again = ["--model", str(last), "--output_dir", str(tmp_path / "again"), "--max_steps", "1"]
        assert cli.main(["train", "--config", str(recipe), *again]) == 0

    def test_one_sequence_has_no_standard_error(
        self, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        arguments = ["--output_dir", str(tmp_path / "out"), "--validation_sequences", "1", "--max_steps", "1"]
        assert cli.main(["train", "--config", str(recipe), *arguments]) == 0
        printed = capsys.readouterr().out
        assert "cross-entropy, all tokens" in printed
        assert "nan" not in printed

        def refuse(constant: str) -> None:
            raise AssertionError(f"{constant} is not JSON")

        results = json.loads((tmp_path / "out" / "results.json").read_text(), parse_constant=refuse)
        assert results["after"]["eval_cross_entropy_se"] is None
        assert "nan" not in (tmp_path / "out" / "final" / "README.md").read_text(encoding="utf-8")

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
    def test_a_run_without_a_gpu_says_so(
        self, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], finished: Finished
    ) -> None:
        arguments = ["--output_dir", str(tmp_path / "out"), "--use_cpu", "false", "--max_steps", "1"]
        assert cli.main(["train", "--config", str(recipe), *arguments]) == 0
        words = "no GPU was found: computing on the CPU"
        assert words in capsys.readouterr().err
        assert words not in finished.done.stderr, "it was asked for"

    def test_help_into_a_pipe_that_closes(self) -> None:
        command = f"{shlex.quote(sys.executable)} -m ebft.cli train --help | head -n 1"
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        done = subprocess.run(command, shell=True, env=environment, capture_output=True, text=True)
        assert done.stdout.startswith("usage: ebft train")
        assert done.stderr == ""

    def test_reporting_to_what_is_not_there(self, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
        assert "report_to='tensorbord' is not known; did you mean 'tensorboard'?" in refused(
            "--report_to", "tensorbord"
        )
        from transformers.integrations import integration_utils

        monkeypatch.setattr(integration_utils, "get_available_reporting_integrations", lambda: [])
        assert "pip install wandb" in refused("--report_to", "wandb")

    def test_empty_file(self, refused: Refused, tmp_path: Path) -> None:
        (tmp_path / "rows.jsonl").touch()
        assert refused("--dataset", tmp_path / "rows.jsonl") == f"ebft: {tmp_path}/rows.jsonl: the file is empty"

    def test_file_without_rows(self, refused: Refused, tmp_path: Path) -> None:
        (tmp_path / "rows.jsonl").write_text("\n\n")
        assert refused("--dataset", tmp_path / "rows.jsonl").endswith("rows.jsonl: no rows")

    def test_broken_json_line(self, refused: Refused, tmp_path: Path) -> None:
        file = write_rows(tmp_path / "rows.jsonl", ROWS)
        file.write_text(file.read_text() + '{"prompt": \n')
        assert f"rows.jsonl: line {len(ROWS) + 1} is not valid JSON" in refused("--dataset", file)

    def test_missing_column(self, refused: Refused, tmp_path: Path) -> None:
        file = write_rows(tmp_path / "rows.jsonl", [{"question": "a", "answer": "b"}])
        line = refused("--dataset", file)
        assert "row 1: a row needs 'text'" in line
        assert "it has 'question', 'answer'" in line

    def test_documents_shorter_than_one_anchor(self, refused: Refused, tmp_path: Path) -> None:
        file = write_rows(tmp_path / "rows.jsonl", [{"text": "ab"}] * 20)
        line = refused("--dataset", file, "--document_masks")
        assert "all documents are shorter than one anchor needs: the longest has 3 tokens" in line
        assert "no valid anchor" in refused("--answer_only", "--horizon", 40, "--stride", 1)

    def test_tokenizer_without_end_token(self, refused: Refused, tmp_path: Path) -> None:
        byte_tokenizer(end=None).save_pretrained(tmp_path / "tokenizer")
        assert "the tokenizer has no end token" in refused("--tokenizer", tmp_path / "tokenizer")

    def test_vocabulary_larger_than_the_models(self, refused: Refused, tmp_path: Path) -> None:
        byte_tokenizer(extra_tokens=1).save_pretrained(tmp_path / "tokenizer")
        assert "260 tokens but the model only 259 embeddings" in refused("--tokenizer", tmp_path / "tokenizer")

    def test_no_chat_template(self, refused: Refused, tmp_path: Path) -> None:
        byte_tokenizer(chat_template=None).save_pretrained(tmp_path / "tokenizer")
        file = write_rows(tmp_path / "rows.jsonl", [{"messages": [{"role": "user", "content": "a"}]}])
        line = refused("--tokenizer", tmp_path / "tokenizer", "--dataset", file)
        assert "row 1: the tokenizer has no chat template" in line

    def test_one_document_cannot_be_split(self, refused: Refused, tmp_path: Path) -> None:
        file = write_rows(tmp_path / "rows.jsonl", ROWS[:1])
        assert "one document cannot be split; set validation_split=0" in refused("--dataset", file)

    def test_near_miss_of_a_builtin_dataset(self, refused: Refused) -> None:
        assert "did you mean 'stdlib-functions'?" in refused("--dataset", "stdlib-function")

    def test_model_that_is_not_there(self, refused: Refused, tmp_path: Path) -> None:
        assert "no such folder" in refused("--model", tmp_path / "no-model")
        assert "run `ebft fetch smollm2-135m` first" in refused("--model", "smollm2-135m")

    def test_config_typos(self, refused: Refused, tmp_path: Path) -> None:
        assert "did you mean 'learning_rate'?" in refused("--learning_rat", "1")
        assert "did you mean 'reference'?" in refused("--whitening", "refrence")
        assert "horizon='many' is not a whole number" in refused("--horizon", "many")
        assert "temperature=0.0 must be above 0" in refused("--temperature", "0")
        assert "model_dtype='float31' is not one of" in refused("--model_dtype", "float31")
        assert "constantly is not a valid SchedulerType" in refused("--lr_scheduler_type", "constantly")
        broken = tmp_path / "broken.yaml"
        broken.write_text("model: [\n")
        assert "broken.yaml: not valid YAML" in refused("--config", broken)
        assert "no such recipe" in refused("--config", tmp_path / "nothing.yaml")

    def test_output_folder_with_another_run(self, refused: Refused, tmp_path: Path) -> None:
        output = tmp_path / "used"
        (output / "checkpoint-5").mkdir(parents=True)
        (output / "checkpoint-5" / "model.safetensors").write_bytes(b"precious")
        assert "already holds a run" in refused(output=output)
        (output / "recipe.yaml").write_text("model: another\n")
        assert "already holds a run" in refused(output=output)

    def test_output_folder_with_something_else(self, refused: Refused, tmp_path: Path) -> None:
        output = tmp_path / "used"
        output.mkdir()
        (output / "thesis.tex").write_text("precious")
        assert "is not empty and holds no run" in refused(output=output)
        assert "is not empty and holds no run" in refused("--resume", output=output)

    def test_output_folder_that_is_a_file(self, refused: Refused, tmp_path: Path) -> None:
        file = tmp_path / "file"
        file.write_text("precious")
        assert refused(output=file) == f"ebft: output_dir={file} is a file; choose a folder"
        assert file.read_text() == "precious"

    @pytest.mark.parametrize(
        ("arguments", "what"),
        [
            (["--feature_source", "adapter_off"], "adapter_off"),
            (["--feature_layers", "99"], "holds 99 but the network has 2 layers"),
            (["--attention_backend", "flex"], "flex"),
            (["--feature_model", "./no-such-model"], "no-such-model"),
        ],
    )
    def test_settings_that_do_not_fit_the_model_or_machine(
        self, refused: Refused, tmp_path: Path, arguments: list[str], what: str
    ) -> None:
        # The folder itself may be made; a recipe in it would make the next try look like another run.
        (tmp_path / "out").mkdir()
        assert what in refused(*arguments)
