"""`ebft export` of whole models; tests/test_adapters.py has that of adapters."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

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


def assert_same_weights(one: Path, other: Path) -> None:
    found, expected = (AutoModelForCausalLM.from_pretrained(folder).state_dict() for folder in (one, other))
    assert all(torch.equal(found[key], expected[key]) for key in expected)


@pytest.mark.parametrize(
    ("name", "same", "words"),
    [("", "final", "fine-tuned with Energy-Based"), ("checkpoint-2", "checkpoint-2", "max_steps: 3")],
)
def test_a_run_or_checkpoint_becomes_an_ordinary_folder(
    name: str, same: str, words: str, finished: Path, tmp_path: Path
) -> None:
    before, output = os.umask(0o027), tmp_path / "out"
    try:
        assert cli.main(["export", str(finished / name), "--output", str(output)]) == 0
    finally:
        os.umask(before)
    assert_same_weights(output, finished / same)
    assert not {file.name for file in output.iterdir()} & {"optimizer.pt", "trainer_state.json", "recipe.yaml"}
    assert (output / "model.safetensors").stat().st_mode & 0o777 == 0o640, "read by whom the umask lets"
    card = (output / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\ntags: [ebft]\nlibrary_name: transformers\n")
    assert words in card
    assert (output / "curves.png").exists() == (same == "final")


def test_another_precision(finished: Path, tmp_path: Path) -> None:
    assert cli.main(["export", str(finished), "--output", str(finished)]) == 2, "it is there already"
    assert cli.main(["export", str(finished), "--output", str(tmp_path / "bf16"), "--dtype", "bfloat16"]) == 0
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "bf16", dtype="auto")
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
