"""The command itself: help, names, exit codes, and what it imports before it answers. `ebft train`: what it prints and
leaves, and what it refuses in one line before anything is written."""

import io
import os
import pickle
import shutil
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import yaml
from tools.commands_page import commands
from torch.distributed import DistNetworkError
from transformers import AutoModelForCausalLM

from ebft import EBFTConfig, __version__, cli
from ebft.errors import Preempted
from ebft.runtime import launch
from tests.baselines.runs import contents, metrics_of, needs_trl, results_of, run, write_recipe
from tests.imports import Ended, run_commands
from tests.tiny_tokenizer import byte_tokenizer, save_tiny_model

pytestmark = pytest.mark.usefixtures("offline")
# The arguments, the exit code, and what standard error says.
LIGHT: dict[str, tuple[list[str], int, str]] = {
    "no command": ([], 2, ""),
    "unknown command": (["trian"], 2, "unknown command 'trian'; there is train, sft, rlvr, plan, "),
    "launch": (["train", "--launch", "two"], 2, "--launch takes the number of processes to start; leave it out"),
    "no recipe": (["sft", "--config", "nope.yaml", "--launch", "2"], 2, "nope.yaml: no such recipe or study"),
    "no data": (["train", "--config", "quickstart", "--validation_dataset", "a.txt"], 2, "a.txt: no such file or"),
    "value": (["train", "--config", "quickstart", "--whitening=bth"], 2, "did you mean 'both'?"),
    "eval option": (["eval", "--modle", "m"], 2, "did you mean '--model'?"),
    "eval task": (["eval", "--model", "m", "--tasks", "humanevl", "--output", "o"], 2, "did you mean 'humaneval'?"),
    "fetch unknown model": (["fetch", "smollm2-135"], 2, "invalid choice: 'smollm2-135' (choose from "),
    "eval help": (["eval", "--help"], 0, ""),
}


@pytest.fixture(scope="module")
def ended() -> dict[str, Ended]:
    *light, heavy = run_commands([*(arguments for arguments, _, _ in LIGHT.values()), ["env"]])
    assert (heavy.code, "torch" in heavy.imported) == (0, True), "or no test could fail"
    return dict(zip(LIGHT, light, strict=True))


@pytest.mark.parametrize("name", LIGHT)
def test_answered_without_heavy_imports(name: str, ended: dict[str, Ended]) -> None:
    _, code, words = LIGHT[name]
    found = ended[name]
    assert found.imported == []
    assert found.code == code, found.errors
    assert words in found.errors
    lines = found.errors.splitlines()
    assert [line.startswith("ebft: ") for line in lines] == ([True] if code and name != "no command" else [])


def test_help_and_with_it_the_page_of_commands_name_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert (cli.main(["--help"]), cli.main(["--version"])) == (0, 0)
    text = capsys.readouterr().out
    assert {command.split()[0] for command in commands(text)} == cli.COMMANDS.keys()
    assert text.endswith(f"\n{__version__}\n")


ENDS = [
    (KeyboardInterrupt(), 130, "stopped"),
    (Preempted("SIGTERM"), 75, "stopped by SIGTERM"),
    (FileNotFoundError(2, "No such file", "a.txt"), 1, "a.txt: No such file"),
    (ValueError("a\n\x1b[2J"), 2, "a \\x1b[2J"),
    (torch.OutOfMemoryError("CUDA out of memory"), 1, "CUDA out of memory"),
    (ImportError("vLLM is not installed"), 1, "vLLM is not installed"),
]


@pytest.mark.parametrize(("error", "code", "words"), ENDS, ids=lambda value: type(value).__name__)
def test_errors_are_lines_and_codes(error: BaseException, code: int, words: str, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setitem(cli.COMMANDS, "eval", (Mock(side_effect=error), ""))
    assert cli.main(["eval"]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"ebft: {words}")
    is_told = line.endswith("; the same command resumes from here")
    assert is_told != isinstance(error, ValueError | OSError | ImportError)


def test_an_error_that_nobody_foresaw_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cli.COMMANDS, "eval", (Mock(side_effect=RuntimeError("something else")), ""))
    with pytest.raises(RuntimeError, match="something else"):
        cli.main(["eval"])


def test_what_a_run_says_of_its_end(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    """The launcher ends the others with a signal, which may come before they notice, and says why itself."""
    full, stopped = RuntimeError("PytorchStreamWriter failed writing file"), Preempted("SIGTERM")
    stopped.__cause__ = DistNetworkError("no answer")
    for error, launched, code, said in (
        (full, "", 1, f"ebft: {tmp_path}: the disk is full\n"),
        (stopped, "", 75, "ebft: stopped by SIGTERM\n"),
        (stopped, "1", 75, ""),
    ):
        monkeypatch.setenv(launch.LAUNCHED, launched)
        assert (cli._run_failed(error, tmp_path), capsys.readouterr().err) == (code, said)


# ---- ebft train ------------------------------------------------------------------------------------------------------


SECRET = "hf_NoSuchTokenButSecret"


@dataclass
class Finished:
    arguments: list[str]
    output: Path
    code: int
    printed: str
    said: str


@pytest.fixture(scope="module")
def recipe(tiny: Path, sums: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    small = {"max_steps": 3, "samples": 2, "per_device_train_batch_size": 2, "eval_strategy": "no"}
    return write_recipe(tmp_path_factory.mktemp("recipe"), tiny, sums, **small, disable_tqdm=False)


@pytest.fixture(scope="module")
def finished(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A run of three steps, once for all the tests that look at it."""
    folder, printed, said = tmp_path_factory.mktemp("run"), io.StringIO(), io.StringIO()
    arguments = ["train", "--config", str(recipe), "--output_dir", str(folder / "out"), "--seed", "7"]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed), redirect_stderr(said):
        patch.setenv("EBFT_CACHE", str(folder / "cache"))
        patch.setenv("HF_TOKEN", "before")  # so that it is put back
        code = cli.main([*arguments, "--hub-token", SECRET])
        assert os.environ["HF_TOKEN"] == SECRET
    return Finished(arguments, folder / "out", code, printed.getvalue(), said.getvalue())


class TestDryRun:
    def test_it_shows_and_writes_nothing(self, recipe: Path, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
        """The plan and an example."""
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
        assert cli.main(["train", "--config", str(recipe), "--use_cpu", "false", "--dry-run"]) == 0  # to no folder
        text, notes = capsys.readouterr()
        assert "no GPU was found: computing on the CPU, where 3 steps take at least" in notes
        plan = dict(line.split("  ", 1) for line in text.split("\n\n")[0].splitlines())
        assert plan["trains on"].strip().endswith(" tokens of 29 documents")
        assert plan["steps"].strip().startswith("3")
        assert "that is all" in text
        assert [name for name in contents(tmp_path) if not name.startswith("cache")] == []

    def test_it_says_that_a_run_would_be_refused(self, recipe: Path, tmp_path: Path, capsys: Any) -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "recipe.yaml").write_text("model: another\n")
        assert run("train", recipe, tmp_path / "out", "--dry-run") == 2
        assert contents(tmp_path / "out") == {"recipe.yaml": b"model: another\n"}
        assert "already holds a run" in capsys.readouterr().err
        other = save_tiny_model(tmp_path / "other", byte_tokenizer(extra_tokens=2))
        assert run("train", recipe, tmp_path / "new", "--feature_model", other, "--dry-run") == 2
        assert f"the tokenizer of {other} differs from the model's (261 and 259 tokens)" in capsys.readouterr().err


class TestRun:
    def test_what_it_prints(self, finished: Finished) -> None:
        assert finished.code == 0, finished.said
        for part in ("before", "after", "cross-entropy", "feature-matching loss", str(finished.output / "final")):
            assert part in finished.printed
        lines = [line for line in finished.said.splitlines() if line.startswith("step ") and ": reward " in line]
        assert [line.split(":")[0] for line in lines] == ["step 1", "step 2", "step 3"]
        assert "%|" not in finished.said, "a log file has no bar"
        assert "no GPU was found" not in finished.said, "it was asked for"
        assert "note: computing on the CPU, where 3 steps take at least " in finished.said

    def test_what_it_leaves(self, finished: Finished, tiny: Path) -> None:
        output, results = finished.output, results_of(finished.output)
        assert [entry["step"] for entry in metrics_of(output) if "reward" in entry] == [1, 2, 3]
        assert results["steps"] == 3
        assert results["after"]["eval_cross_entropy"] != results["before"]["eval_cross_entropy"]
        given = yaml.safe_load((output / "recipe.yaml").read_text())
        assert (given["model"], given["seed"]) == (str(tiny), 7)
        assert (output / "curves.png").read_bytes().startswith(b"\x89PNG")
        assert (output / "samples" / "step-000002.md").read_text().count("| sample ") > 0
        card = (output / "final" / "README.md").read_text(encoding="utf-8")
        assert yaml.safe_load(card.partition("```yaml\n")[2].partition("```")[0]) == given
        trained, first = map(AutoModelForCausalLM.from_pretrained, (output / "final", tiny))  # plain transformers
        assert trained.config._attn_implementation != "ebft"
        assert not torch.equal(*(model.model.layers[0].self_attn.q_proj.weight for model in (trained, first)))

    def test_a_secret_is_nowhere(self, finished: Finished) -> None:
        assert SECRET not in finished.printed + finished.said
        files = [file for file in finished.output.rglob("*") if file.is_file()]
        assert {"recipe.yaml", "training_args.bin", "README.md"} <= {file.name for file in files}
        assert [file for file in files if SECRET.encode() in file.read_bytes()] == []
        args = EBFTConfig(output_dir="o", use_cpu=True, hub_token=SECRET)
        assert args.hub_token == SECRET, "pushing needs it"
        assert SECRET.encode() not in pickle.dumps(args)

    def test_resume_of_a_finished_run_changes_no_weights_or_results(self, finished: Finished, tmp_path: Path) -> None:
        output = shutil.copytree(finished.output, tmp_path / "copy")
        assert cli.main([*finished.arguments, "--output_dir", str(output), "--resume"]) == 0
        weights = [(place / "final" / "model.safetensors").read_bytes() for place in (finished.output, output)]
        assert weights[0] == weights[1]
        before, after = results_of(finished.output), results_of(output)
        assert (before["before"], before["after"]["eval_cfm"]) == (after["before"], after["after"]["eval_cfm"])
        steps = [entry["step"] for entry in metrics_of(output)]
        assert steps == sorted(steps)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("train --lr_scheduler_type constantly", "constantly is not a valid SchedulerType"),
        ("train --dataset nothing.jsonl", "nothing.jsonl: no such file or folder"),
        ("train --dataset some/data", "HF_HUB_OFFLINE is set"),
        ("train --model smollm2-135m", "run `ebft fetch smollm2-135m` first"),
        ("train --feature_layers 99", "layer numbers up to 2"),
        ("train --answer_only --horizon 40 --stride 1", "the longest answer has "),
        ("train --dataset {}/questions.jsonl", "it has 'question', 'answer'"),
        ("train --dataset {}/short.jsonl --document_masks", "the longest document has 3"),
        ("train --model {}/cut-off", "cut-off' cannot be loaded: "),
        *(
            pytest.param(arguments, words, marks=needs_trl)
            for arguments, words in (
                ("sft --feature_source average", "cannot measure baselines"),
                ("sft --fsdp full_shard", "fsdp works with `ebft train` only"),
                ("sft --prompt_column question", "is in none of the datasets"),
                # TRL would train for no step, without a word.
                ("rlvr --rewards bleu --limit_documents 4", "a step draws answers to 4 prompts, but there are 3"),
                ("rlvr --rewards bleu --reward_weights 1,2", "reward weights (2) must match number of reward"),
            )
        ),
    ],
)
def test_what_is_refused(arguments: str, words: str, recipe: Path, tiny: Path, tmp_path: Path, capfd: Any) -> None:
    """One line, code 2, nothing printed. A recipe in the folder would make the next try look like another run."""
    (tmp_path / "questions.jsonl").write_text('{"question": "a", "answer": "b"}\n')
    (tmp_path / "short.jsonl").write_text('{"text": "ab"}\n' * 20)
    weights = shutil.copytree(tiny, tmp_path / "cut-off") / "model.safetensors"
    os.truncate(weights, weights.stat().st_size // 2)
    capfd.readouterr()
    command, *given = arguments.format(tmp_path).split()
    assert run(command, recipe, tmp_path / "runs" / "out", *given) == 2
    printed = capfd.readouterr()
    (line,) = [line for line in printed.err.splitlines() if not line.startswith(("note: ", "training on "))]
    assert line.startswith("ebft: ")
    assert words in line
    assert printed.out == ""
    assert not (tmp_path / "runs").exists()
