"""Curves and model card of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebft.train import model_card
from tests.baselines.runs import needs_trl, run, write_recipe

pytestmark = pytest.mark.usefixtures("offline")


@needs_trl
def test_the_card_holds_its_picture(tiny: Path, sums: Path, tmp_path: Path) -> None:
    assert run("sft", write_recipe(tmp_path, tiny, sums, max_steps=1), tmp_path / "out") == 0
    final = tmp_path / "out" / "final"
    assert "![curves](curves.png)" in (final / "README.md").read_text()
    assert (final / "curves.png").read_bytes() == (tmp_path / "out" / "curves.png").read_bytes()
    assert model_card._header("base_model", ["Qwen/Qwen2.5-1.5B"]) == ["base_model: [Qwen/Qwen2.5-1.5B]"]
    assert model_card._header("datasets", ["a/b:c", str(sums), "stdlib-code"]) == ["datasets: [a/b]"]
