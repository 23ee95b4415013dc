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


@pytest.mark.parametrize(
    ("name", "same", "words", "dtype"),
    [
        ("", "final", "fine-tuned with Energy-Based", torch.float32),
        ("checkpoint-2", "checkpoint-2", "max_steps: 3", torch.bfloat16),
    ],
)
def test_what_is_exported(name: str, same: str, words: str, dtype: torch.dtype, finished: Path, tmp_path: Path) -> None:
    before, output = os.umask(0o027), tmp_path / "out"
    arguments = ["export", str(finished / name), "--output", str(output)]
    try:
        assert cli.main([*arguments, *(["--dtype", "bfloat16"] if dtype == torch.bfloat16 else [])]) == 0
    finally:
        os.umask(before)
    assert cli.main(arguments) == 2, "it is there already"
    models = [AutoModelForCausalLM.from_pretrained(folder, dtype="auto") for folder in (output, finished / same)]
    for found, trained in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(found, trained.to(dtype))
        assert found.dtype == dtype
    assert not {file.name for file in output.iterdir()} & {"optimizer.pt", "trainer_state.json", "recipe.yaml"}
    assert (output / "model.safetensors").stat().st_mode & 0o777 == 0o640, "read by whom the umask lets"
    card = (output / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\ntags: [ebft]\nlibrary_name: transformers\n")
    assert words in card
    assert (output / "curves.png").exists() == (same == "final")
