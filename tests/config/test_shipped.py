"""Recipes of the package are found by name, and files of the same name come first."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ebft.config.recipe import read_values
from ebft.config.shipped import find_recipe, shipped_names
from ebft.errors import ConfigError


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_shipped_recipe_is_found_from_any_folder(elsewhere: Path) -> None:
    assert read_values("quickstart")["output_dir"] == "runs/quickstart"
    assert read_values("studies/small/cpu")["methods"]


def test_a_file_comes_first(elsewhere: Path) -> None:
    (elsewhere / "quickstart").write_text("output_dir: mine\n")
    assert read_values("quickstart") == {"output_dir": "mine"}


def test_a_folder_is_no_recipe(elsewhere: Path) -> None:
    for name in ("quickstart", "mine"):
        (elsewhere / name).mkdir()
    assert read_values("quickstart")["output_dir"] == "runs/quickstart"
    with pytest.raises(ConfigError, match="mine is a folder"):
        read_values("mine")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("quikstart", "'quickstart'"),
        ("recipes/quickstart.yaml", "'quickstart'"),  # where it was once
        ("rlvr_qa_code", "'paper/rlvr_qa_code'"),
        ("qa_code", "'paper/qa_code' or 'studies/paper/qa_code'"),
        ("studies/small/cpuu", "'studies/small/cpu'"),
    ],
)
def test_an_unknown_name_lists_near_ones(name: str, meant: str, elsewhere: Path) -> None:
    with pytest.raises(ConfigError, match="no such recipe") as error:
        find_recipe(name)
    assert f"did you mean {meant}" in str(error.value)


def test_a_folder_lists_what_is_in_it_and_nonsense_lists_the_folders(elsewhere: Path) -> None:
    for name, words in (
        ("large", "there are large/"),
        ("nope", "large/..., little-data, paper/..., quickstart, qwen-0.5b, "),
    ):
        with pytest.raises(ConfigError, match="no such recipe") as error:
            find_recipe(name)
        assert words in str(error.value)


def test_little_data_has_the_settings_of_the_study() -> None:
    studies = Path(__file__).parents[2] / "results" / "replication"
    study, longer = (yaml.safe_load((studies / f"little-1000-{name}.yaml").read_text()) for name in ("ends", "packed"))
    settings = {**study["settings"], **study["methods"]["ebft"]["settings"], "gamma": 0.3}
    settings["num_train_epochs"] = longer["settings"]["num_train_epochs"]
    recipe = read_values("little-data")
    # The data are the user's own; batches of validation and what is only shown do not change a run.
    apart = {"dataset", "validation_dataset", "per_device_eval_batch_size", "save_only_model", "samples_every"}
    assert {name: recipe[name] for name in settings.keys() - apart} == {n: settings[n] for n in settings.keys() - apart}


def test_names_are_names_and_not_files() -> None:
    names = shipped_names()
    assert {"quickstart", "paper/qa_code", "studies/small/cpu", "large/qwen2.5-7b-8xh100"} <= set(names)
    assert all(find_recipe(name).is_file() for name in names)
