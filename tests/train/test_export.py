"""`ebft export` of whole models; tests/test_adapters.py has that of adapters."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ebft import cli
from tests.baselines.runs import run, write_recipe

pytestmark = pytest.mark.usefixtures("offline")


@pytest.fixture(scope="module")
def finished(tiny: Path, sums: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EBFT_CACHE", str(folder / "cache"))
        recipe = write_recipe(folder, tiny, sums, max_steps=3, eval_strategy="no", validation_split=0)
        assert run("train", recipe, folder / "out", "--save_steps", 2) == 0
    return folder / "out"


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return AutoModelForCausalLM.from_pretrained(folder).state_dict()


@pytest.mark.parametrize(
    ("name", "same", "words"),
    [
        ("", "final", "fine-tuned with Energy-Based"),
        ("final", "final", "fine-tuned with Energy-Based"),
        ("checkpoint-2", "checkpoint-2", "max_steps: 3"),
    ],
)
def test_a_run_or_checkpoint_becomes_an_ordinary_folder(
    name: str, same: str, words: str, finished: Path, tmp_path: Path
) -> None:
    before, output = os.umask(0o027), tmp_path / "out"
    try:
        assert cli.main(["export", str(finished / name), "--output", str(output)]) == 0
    finally:
        os.umask(before)
    found, expected = weights(output), weights(finished / same)
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    assert len(AutoTokenizer.from_pretrained(output)) == len(AutoTokenizer.from_pretrained(finished / same))
    assert not {file.name for file in output.iterdir()} & {"optimizer.pt", "trainer_state.json", "recipe.yaml"}
    assert (output / "model.safetensors").stat().st_mode & 0o777 == 0o640, "read by whom the umask lets"
    own, config = (finished / same / file for file in ("model.safetensors", "config.json"))
    assert own.stat().st_mode == config.stat().st_mode
    card = (output / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\ntags: [ebft]\nlibrary_name: transformers\n")
    assert words in card
    assert (output / "curves.png").exists() == (same == "final")


def test_of_a_run_that_is_not_finished_the_last_whole_checkpoint(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unfinished = tmp_path / "unfinished"
    shutil.copytree(finished, unfinished)
    shutil.rmtree(unfinished / "final")
    assert cli.main(["export", str(unfinished), "--output", str(tmp_path / "out")]) == 0
    said = f"note: {unfinished} is not finished: this is its last checkpoint, after 3 steps\n"
    assert said in capsys.readouterr().err
    found, expected = weights(tmp_path / "out"), weights(finished / "checkpoint-3")
    assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_another_precision(finished: Path, tmp_path: Path) -> None:
    assert cli.main(["export", str(finished), "--output", str(tmp_path / "out"), "--dtype", "bfloat16"]) == 0
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere/at/all/x", "--output", "{}/new"], "no such folder"),
        (["./nowhere", "--output", "{}/new"], "no such folder"),
        (["{run}", "--output", "{run}"], "there already and not empty"),
        (["{run}", "--output", "{}/new", "--dtype", "bf16"], "invalid choice: 'bf16'"),
    ],
)
def test_errors_are_one_line(
    arguments: list[str], words: str, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled = [argument.replace("{}", str(tmp_path)).replace("{run}", str(finished)) for argument in arguments]
    assert cli.main(["export", *filled]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "new").exists()
