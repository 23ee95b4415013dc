"""The output folder of a run: whose it is, and when a run may be resumed in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.baselines.runs import contents, needs_trl, run, write_recipe

pytestmark = pytest.mark.usefixtures("offline")


@needs_trl
def test_the_folder_of_another_method(tiny: Path, sums: Path, tmp_path: Path, capsys: Any) -> None:
    output = tmp_path / "out"
    output.mkdir()
    recipe = write_recipe(tmp_path, tiny, sums)
    (output / "recipe.yaml").write_text(recipe.read_text())
    (output / "results.json").write_text(json.dumps({"method": "sft"}))
    before = contents(output)
    assert run("train", recipe, output, "--resume") == 2
    assert "holds a run of sft, not of ebft" in capsys.readouterr().err
    assert run("sft", recipe, output) == 2
    assert "already holds a run" in capsys.readouterr().err
    assert contents(output) == before
