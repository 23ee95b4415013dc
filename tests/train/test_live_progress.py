"""What a person sees while a run trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.baselines.runs import needs_trl, run, write_recipe

pytestmark = pytest.mark.usefixtures("offline")


@needs_trl
def test_without_a_bar_lines_say_how_it_goes(tiny: Path, sums: Path, tmp_path: Path, capsys: Any) -> None:
    assert run("sft", write_recipe(tmp_path, tiny, sums, max_steps=2, eval_steps=1), tmp_path / "out") == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("step 1: ")]
    assert lines[0].startswith("step 1: loss ")
    assert "cross_entropy" in lines[1]
