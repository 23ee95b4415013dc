from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from ebft.config.recipe import field_types, load_recipe, read_values
from ebft.config.training import EBFTConfig
from ebft.errors import ConfigError
from tests.config.recipes import NEEDED, load, refuse


class TestSources:
    def test_file_alone(self, tmp_path: Path) -> None:
        file = tmp_path / "recipe.yaml"
        file.write_text(
            "model: m\ndataset: [a.jsonl, b.jsonl]\noutput_dir: out\nhorizon: 4\nlearning_rate: 1e-5\nuse_cpu: true\n"
        )
        recipe = load_recipe(file, {})
        assert recipe.model.model == "m"
        assert recipe.data.dataset == ["a.jsonl", "b.jsonl"]
        assert recipe.training.horizon == 4
        # YAML itself takes 1e-5 for text.
        assert recipe.training.learning_rate == 1e-5

    def test_flags_win_over_the_file(self, tmp_path: Path) -> None:
        recipe = load("horizon: 4\nstride: 2\nmodel: of-the-file\n", tmp_path, horizon="6")
        assert (recipe.training.horizon, recipe.training.stride) == (6, 2)
        assert recipe.model.model == "some-model"
        assert recipe.given["horizon"] == 6

    def test_defaults_are_kept_where_nothing_is_set(self) -> None:
        recipe = load()
        assert recipe.training.context_length == 1024
        assert recipe.training.whitening == "reference"
        assert recipe.training.learning_rate == 1e-6
        assert recipe.data.text_column == "text"

    def test_every_field_is_known_and_has_a_type(self) -> None:
        assert {f.name for f in fields(EBFTConfig) if f.init} <= set(field_types())

    def test_invalid_yaml(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"recipe\.yaml: not valid YAML") as caught:
            load("model: [a, b\nhorizon: 4", tmp_path)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("text", ["", "- a\n- b\n", "just words\n"])
    def test_yaml_that_is_no_mapping(self, tmp_path: Path, text: str) -> None:
        with pytest.raises(ConfigError, match=r"recipe\.yaml: a recipe is a list of"):
            load(text, tmp_path)

    def test_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"nothing\.yaml: no such recipe"):
            load_recipe(tmp_path / "nothing.yaml", NEEDED)


class TestNames:
    @pytest.mark.parametrize(
        ("typo", "meant"),
        [("horizen", "horizon"), ("learning-rates", "learning_rate"), ("datasets", "dataset"), ("modle", "model")],
    )
    def test_unknown_key_names_the_nearest(self, typo: str, meant: str) -> None:
        with pytest.raises(ConfigError, match=f"unknown setting '{typo}'; did you mean '{meant}'"):
            load(**{typo: 1})

    def test_unknown_key_without_a_neighbour(self) -> None:
        with pytest.raises(ConfigError, match=r"unknown setting 'xyzzy'$"):
            load(xyzzy=1)

    def test_a_study_is_no_recipe(self) -> None:
        with pytest.raises(ConfigError, match="this is a study, which is many runs; start them with `ebft study run`"):
            load(name="a", methods={"sft": {}})

    @pytest.mark.parametrize("yaml", ["5: 6\n", "on: true\n", "null: 1\n"])
    def test_key_that_is_no_text(self, tmp_path: Path, yaml: str) -> None:
        with pytest.raises(ConfigError, match="unknown setting"):
            load(yaml, tmp_path)

    @pytest.mark.parametrize(("name", "what"), [("model", "no model"), ("dataset", "no data")])
    @pytest.mark.parametrize("value", ["", None])
    def test_missing_model_or_dataset(self, name: str, what: str, value: str | None) -> None:
        given = {k: v for k, v in NEEDED.items() if k != name}
        with pytest.raises(ConfigError, match=f"{what}: set `{name}`"):
            load_recipe(None, given if value is None else {**given, name: value})

    @pytest.mark.parametrize("value", ["", None, "none"])
    def test_missing_output_folder(self, value: str | None) -> None:
        with pytest.raises(ConfigError, match="no output folder: set `output_dir`"):
            load(output_dir=value)

    @pytest.mark.parametrize("command", ["train", "sft", "rlvr"])
    def test_resuming_as_in_transformers_is_not_ignored(self, command: str) -> None:
        given = {**NEEDED, "resume_from_checkpoint": "runs/mine/checkpoint-10"}
        with pytest.raises(ConfigError, match=r"--resume continues .* --model CHECKPOINT begins"):
            load_recipe(None, given, command)


class TestMethod:
    @pytest.mark.parametrize(
        ("name", "value", "expected"),
        [
            ("whitening", "referense", "did you mean 'reference'"),
            ("anchors", "stride", "did you mean 'strided'"),
            ("feature_pooling", "max", "not one of last, mean"),
            ("feature_normalize", "per-layer", "did you mean 'per_layer'"),
            ("feature_source", "copi", "did you mean 'copy'"),
            ("attention_backend", "flash", "not one of auto, sdpa, flex"),
            ("temperature", 0, "must be above 0"),
            ("temperature", -1, "must be above 0"),
            ("alpha", 2, "between 0 and 1"),
            ("alpha", -0.1, "between 0 and 1"),
            ("gamma", -1, "must not be negative"),
            ("kl_weight", -1, "must not be negative"),
            ("horizon", 0, "at least 1"),
            ("stride", 0, "at least 1"),
            ("samples", 0, "at least 1"),
            ("samples", 1, "eval_samples"),
            ("context_length", 0, "at least 1"),
            ("per_device_train_batch_size", 0, "at least 1"),
            ("per_device_eval_batch_size", 0, "at least 1"),
            ("gradient_accumulation_steps", 0, "at least 1"),
            ("max_steps", 0, "-1 for num_train_epochs"),
            ("validation_split", 1.5, "no number of documents"),
            ("test_split", 2.5, "no number of documents"),
            ("horizon", 1020, "does not fit in context_length=1024; use horizon<=1016"),
        ],
    )
    def test_errors_name_the_field_and_the_way_out(self, name: str, value: Any, expected: str) -> None:
        message = refuse(name, value)
        assert name in message
        assert str(value) in message
        assert expected in message

    def test_longest_horizon_that_fits(self) -> None:
        assert load(horizon=1016).training.horizon == 1016

    def test_two_sources_of_features_exclude_each_other(self) -> None:
        with pytest.raises(ConfigError, match="feature_model='other' and feature_source='copy' exclude each other"):
            load(feature_model="other", feature_source="copy")

    def test_config_errors_are_the_same_from_python(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="did you mean 'reference'"):
            EBFTConfig(output_dir=str(tmp_path), whitening="referense")


@pytest.mark.parametrize("text", ["gamma: " + "[" * 5000, "seed: " + "9" * 5000, "run_name: 2001-99-99"], ids=len)
def test_a_recipe_that_a_parser_chokes_on_is_one_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        read_values(file)
    assert str(error.value).startswith(str(file))
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500
