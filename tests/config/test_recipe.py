"""Recipes: where they come from, which names they may hold, and what is written of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebft.config.recipe import find_recipe, load_recipe, read_values, shipped_names
from ebft.errors import ConfigError


def test_a_file_and_flags_which_win(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"  # YAML itself takes 1e-5 for text
    file.write_text("model: of-the-file\ndataset: [a.jsonl, b.jsonl]\nhorizon: 4\nstride: 2\nlearning_rate: 1e-5\n")
    recipe = load_recipe(file, {"output_dir": "o", "horizon": "6", "model": "some-model"})
    assert (recipe.training.horizon, recipe.training.stride, recipe.training.learning_rate) == (6, 2, 1e-5)
    assert (recipe.model.model, recipe.data.dataset) == ("some-model", ["a.jsonl", "b.jsonl"])
    assert recipe.given["horizon"] == 6


def test_shipped_recipes_are_found_but_a_file_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert all(find_recipe(name).is_file() for name in shipped_names())
    assert read_values("quickstart")["output_dir"] == "runs/quickstart"
    (tmp_path / "quickstart").write_text("output_dir: mine\n")
    assert read_values("quickstart") == {"output_dir": "mine"}
    with pytest.raises(ConfigError, match=r"no such recipe or study: neither a file .*; did you mean 'paper/qa_code'"):
        find_recipe("qa_code")


def test_unknown_names_and_what_is_required() -> None:
    for given, words in (
        ({"horizen": "1"}, "unknown setting 'horizen' of `ebft train`; did you mean 'horizon'"),
        ({"model": ""}, "no model: every run needs one; give --model"),
    ):
        with pytest.raises(ConfigError, match=words):
            load_recipe(None, {"model": "m", "dataset": "rows.jsonl", "output_dir": "out", "use_cpu": True, **given})


@pytest.mark.parametrize("content", [b"", b"\xff\xfe: 1", b"[" * 400, b"gamma: 0\nhorizon: 4\ngamma: 1\n"])
def test_what_is_no_recipe_is_one_line_with_the_files_name(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as error:
        read_values(file)
    assert str(error.value).startswith(f"{file}: ")
    assert "\n" not in str(error.value)
    assert ("'gamma' stands there twice" in str(error.value)) == (b"horizon" in content)
