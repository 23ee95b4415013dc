"""A token that is given as a setting reaches the environment, and nothing that is written."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from ebft.config.recipe import load_recipe
from ebft.config.secrets import take_secrets
from ebft.config.training import EBFTConfig
from ebft.errors import ConfigError
from tests.baselines.runs import run, write_recipe

TOKEN = "hf_NoSuchTokenButSecret"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "before")  # so that it is put back


def test_it_is_in_the_environment_and_no_longer_a_setting(tmp_path: Path) -> None:
    given = {"model": "m", "dataset": "d", "output_dir": str(tmp_path), "use_cpu": True, "hub_token": TOKEN}
    recipe = load_recipe(None, given)
    assert os.environ["HF_TOKEN"] == TOKEN
    assert "hub_token" not in recipe.given
    assert recipe.training.hub_token is None
    assert TOKEN not in repr(recipe)


def test_settings_that_are_made_in_python_are_saved_without_it(tmp_path: Path) -> None:
    args = EBFTConfig(output_dir=str(tmp_path), use_cpu=True, hub_token=TOKEN)
    assert args.hub_token == TOKEN, "pushing needs it"
    assert TOKEN.encode() not in pickle.dumps(args)


def test_options_of_libraries_that_look_like_secrets_are_refused() -> None:
    with pytest.raises(ConfigError, match="trl_options holds 'api_key', which would be written"):
        take_secrets({"trl_options": {"server": {"api_key": TOKEN}}})
    assert take_secrets({"trl_options": {"max_token": 5}}) == {"trl_options": {"max_token": 5}}


@pytest.mark.usefixtures("offline")
def test_a_run_leaves_it_nowhere(
    tiny: Path, sums: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, output = write_recipe(tmp_path, tiny, sums, hub_token=TOKEN), tmp_path / "out"
    assert run("train", recipe, output, "--max_steps", 2, "--hub_token", TOKEN) == 0
    printed = capfd.readouterr()
    assert TOKEN not in printed.out + printed.err
    files = [file for file in output.rglob("*") if file.is_file()]
    assert {"recipe.yaml", "training_args.bin", "README.md"} <= {file.name for file in files}
    assert [file for file in files if TOKEN.encode() in file.read_bytes()] == []
