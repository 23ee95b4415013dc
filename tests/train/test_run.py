"""A run from start to end, whatever the trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.baselines.runs import needs_trl, results_of, run, write_recipe

pytestmark = pytest.mark.usefixtures("offline")


@needs_trl
def test_evaluation_that_is_asked_for_without_data(tiny: Path, sums: Path, tmp_path: Path, capsys: Any) -> None:
    for command in ("train", "sft"):
        assert run(command, write_recipe(tmp_path, tiny, sums, validation_split=0), tmp_path / "out") == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("ebft: eval_strategy=steps needs validation data; set validation_split")


@needs_trl
def test_a_finished_run_that_is_continued_is_not_finished(
    tiny: Path, sums: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ebft.baselines import sft

    recipe, output = write_recipe(tmp_path, tiny, sums), tmp_path / "out"
    assert run("sft", recipe, output, "--max_steps", 2) == 0
    seen: list[dict[str, Any]] = []
    train = sft.MeasuredSFT.train
    monkeypatch.setattr(sft.MeasuredSFT, "train", lambda *a, **k: (seen.append(results_of(output)), train(*a, **k))[1])
    assert run("sft", recipe, output, "--max_steps", 4, "--resume") == 0
    assert "steps" not in seen[0]
    assert results_of(output)["steps"] == 4
