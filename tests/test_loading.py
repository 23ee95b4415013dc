"""Models, tokenizers and feature networks from what a recipe or an evaluation names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.baselines.runs import needs_trl, results_of, run, write_recipe

pytestmark = pytest.mark.usefixtures("offline")


@pytest.fixture(scope="module")
def warm(tiny: Path, sums: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("warm")
    recipe = write_recipe(folder, tiny, sums, max_steps=8, eval_strategy="no", save_strategy="no")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EBFT_CACHE", str(folder / "cache"))
        assert run("sft", recipe, folder / "sft") == 0
    return folder / "sft"


@needs_trl
class TestWarmStart:
    """`model: runs/sft`, and the frozen network from the warm start or from the base model."""

    @pytest.mark.parametrize("command", ["train", "rlvr"])
    def test_a_run_begins_where_sft_ended(
        self, warm: Path, tiny: Path, sums: Path, tmp_path: Path, command: str
    ) -> None:
        recipe = write_recipe(tmp_path, warm, sums, max_steps=1, eval_strategy="no", save_strategy="no")
        own = ["--rewards", "bleu", "--max_new_tokens", "2"] if command == "rlvr" else []
        assert run(command, recipe, tmp_path / "own", *own) == 0
        assert run(command, recipe, tmp_path / "base", *own, "--feature_model", tiny) == 0
        sft_after = results_of(warm)["after"]
        from_warm, from_base = (results_of(tmp_path / name) for name in ("own", "base"))
        for name in ("eval_cross_entropy", "eval_answer_cross_entropy"):
            assert from_warm["before"][name] == pytest.approx(sft_after[name], rel=1e-6)
            assert from_base["before"][name] == from_warm["before"][name]
        # Against the base model it is SFT's own measurement; against the warm start it is another.
        assert from_base["before"]["eval_cfm"] == pytest.approx(sft_after["eval_cfm"], rel=1e-5)
        assert from_base["ruler"] == results_of(warm)["ruler"]
        assert abs(from_warm["before"]["eval_cfm"] - sft_after["eval_cfm"]) > 1e-4
        assert from_warm["ruler"]["network"] != from_base["ruler"]["network"]

    def test_a_run_that_is_not_finished(self, warm: Path, sums: Path, tmp_path: Path, capsys: Any) -> None:
        unfinished = tmp_path / "unfinished"
        unfinished.mkdir()
        (unfinished / "recipe.yaml").write_text("model: x\n")
        assert run("train", write_recipe(tmp_path, unfinished, sums), tmp_path / "out") == 2
        assert "is a run without a final model yet" in capsys.readouterr().err
