"""Recipes: where they come from, which names they may hold, and what is written of them."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import yaml

from ebft.config.recipe import find_recipe, load_recipe, read_values, shipped_names
from ebft.config.training import EBFTConfig
from ebft.errors import ConfigError
from tests.baselines.runs import run, write_recipe
from tests.config.recipes import NEEDED, load

TOKEN = "hf_NoSuchTokenButSecret"


class TestSources:
    def test_a_file_and_flags_which_win(self, tmp_path: Path) -> None:
        # YAML itself takes 1e-5 for text.
        text = "model: of-the-file\ndataset: [a.jsonl, b.jsonl]\nhorizon: 4\nstride: 2\nlearning_rate: 1e-5\n"
        recipe = load(text, tmp_path, horizon="6")
        assert (recipe.training.horizon, recipe.training.stride, recipe.training.learning_rate) == (6, 2, 1e-5)
        assert (recipe.model.model, recipe.data.dataset) == ("some-model", ["rows.jsonl"]), "given by `load`"
        assert recipe.given["horizon"] == 6
        assert load_recipe(tmp_path / "recipe.yaml", {"output_dir": "o"}).data.dataset == ["a.jsonl", "b.jsonl"]

    def test_a_shipped_recipe_is_found_from_any_folder_and_a_file_comes_first(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert all(find_recipe(name).is_file() for name in shipped_names())
        assert read_values("studies/small/cpu")["methods"]
        assert read_values("quickstart")["output_dir"] == "runs/quickstart"
        (tmp_path / "quickstart").write_text("output_dir: mine\n")
        assert read_values("quickstart") == {"output_dir": "mine"}

    @pytest.mark.parametrize(
        ("name", "meant"),
        [("quikstart", "'quickstart'"), ("qa_code", "'paper/qa_code' or 'studies/paper/qa_code'"), ("no.yaml", "")],
    )
    def test_an_unknown_name_lists_near_ones(self, name: str, meant: str) -> None:
        with pytest.raises(ConfigError, match="no such recipe") as error:
            find_recipe(name)
        assert meant in str(error.value)

    @pytest.mark.parametrize(
        "content",
        [b"", b"- a\n", b"words\n", b"model: [a", b"\xff\xfe: 1", b"[" * 5000, b"a: 2001-99-99", b"a: " + b"9" * 5000],
        ids=lambda content: content[:9],
    )
    def test_what_is_no_recipe_is_one_line_with_the_files_name(self, content: bytes, tmp_path: Path) -> None:
        file = tmp_path / "recipe.yaml"
        file.write_bytes(content)
        with pytest.raises(ConfigError) as error:
            read_values(file)
        assert str(error.value).startswith(f"{file}: ")
        assert "\n" not in str(error.value)


class TestNames:
    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("horizen", "unknown setting 'horizen' of `ebft train`; did you mean 'horizon'"),
            ("lr", "here it is called 'learning_rate'"),
            ("xyzzy", r"unknown setting 'xyzzy' of `ebft train`$"),
            ("resume_from_checkpoint", "resume_from_checkpoint is not supported; give --resume"),
        ],
    )
    def test_unknown_names(self, name: str, words: str) -> None:
        with pytest.raises(ConfigError, match=words):
            load(**{name: "1"})

    @pytest.mark.parametrize("text", ["5: 6\n", "on: true\n", "null: 1\n"])
    def test_a_key_that_is_no_text(self, tmp_path: Path, text: str) -> None:
        with pytest.raises(ConfigError, match="unknown setting"):
            load(text, tmp_path)

    @pytest.mark.parametrize("name", ["model", "dataset", "output_dir"])
    @pytest.mark.parametrize("value", ["", None])
    def test_what_is_required(self, name: str, value: str | None) -> None:
        given = {**NEEDED, name: value} if value is not None else {k: v for k, v in NEEDED.items() if k != name}
        with pytest.raises(ConfigError, match=f"no {name}: set `{name}` to"):
            load_recipe(None, given)


class TestSecrets:
    @pytest.fixture(autouse=True)
    def _environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_TOKEN", "before")  # so that it is put back

    def test_settings_that_are_made_in_python_are_saved_without_it(self, tmp_path: Path) -> None:
        args = EBFTConfig(output_dir=str(tmp_path), use_cpu=True, hub_token=TOKEN)
        assert args.hub_token == TOKEN, "pushing needs it"
        assert TOKEN.encode() not in pickle.dumps(args)

    @pytest.mark.usefixtures("offline")
    def test_a_run_leaves_it_nowhere(
        self, tiny: Path, sums: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        recipe, output = write_recipe(tmp_path, tiny, sums, hub_token=TOKEN), tmp_path / "out"
        assert run("train", recipe, output, "--max_steps", 2) == 0
        assert os.environ["HF_TOKEN"] == TOKEN
        printed = capfd.readouterr()
        assert TOKEN not in printed.out + printed.err
        files = [file for file in output.rglob("*") if file.is_file()]
        assert {"recipe.yaml", "training_args.bin", "README.md"} <= {file.name for file in files}
        assert [file for file in files if TOKEN.encode() in file.read_bytes()] == []


def test_little_data_has_the_settings_of_the_study() -> None:
    studies = Path(__file__).parents[2] / "results" / "replication"
    study, longer = (yaml.safe_load((studies / f"little-1000-{name}.yaml").read_text()) for name in ("ends", "packed"))
    settings = {**study["settings"], **study["methods"]["ebft"]["settings"], "gamma": 0.3}
    settings["num_train_epochs"] = longer["settings"]["num_train_epochs"]
    recipe = read_values("little-data")
    # The data are the user's own; batches of validation and what is only shown do not change a run.
    apart = {"dataset", "validation_dataset", "per_device_eval_batch_size", "save_only_model", "samples_every"}
    assert {name: recipe[name] for name in settings.keys() - apart} == {n: settings[n] for n in settings.keys() - apart}
