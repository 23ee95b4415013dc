"""Study files: what they mean, and what is refused before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ebft.errors import ConfigError
from ebft.studies.study_file import Study, read_study

SETTINGS = {"model": "some/model", "dataset": ["rows.jsonl"], "use_cpu": True, "test_split": 10}
METHODS: dict[str, Any] = {
    "sft": {"search": {"learning_rate": [1, 2]}},
    "ebft": {"grid": {"gamma": [0, 0.1]}},
    "warm": {"method": "ebft", "after": "sft"},
}


def read(tmp_path: Path, **changes: Any) -> Study:
    given = {"output_dir": str(tmp_path / "out"), "settings": SETTINGS, "seeds": [0, 1], "methods": METHODS, **changes}
    file = tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump({key: value for key, value in given.items() if value is not None}, sort_keys=False))
    return read_study(file)


def test_rows_are_methods_in_their_settings(tmp_path: Path) -> None:
    study = read(tmp_path)
    assert [row.name for row in study.rows] == ["sft", "ebft,gamma=0", "ebft,gamma=0.1", "warm"]
    assert [row.title for row in study.rows][1] == "ebft (gamma 0)"
    assert study.methods["sft"].candidates == [{"learning_rate": 1.0}, {"learning_rate": 2.0}]
    assert study.methods["warm"].command == "train"


def test_settings_of_recipes_lie_under_those_of_the_study(tmp_path: Path) -> None:
    (tmp_path / "all.yaml").write_text("gamma: 0.5\nalpha: 0.5\nhorizon: 4\nseed: 9\noutput_dir: x\n")
    (tmp_path / "own.yaml").write_text("alpha: 0.25\nhorizon: 2\n")
    methods = {"ebft": {"recipe": "own.yaml", "settings": {"stride": 4}}}
    study = read(tmp_path, recipe="all.yaml", settings={**SETTINGS, "horizon": 3}, methods=methods)
    found = study.methods["ebft"].settings
    assert {name: found[name] for name in ("gamma", "alpha", "horizon", "stride")} == {
        "gamma": 0.5,
        "alpha": 0.25,
        "horizon": 3,
        "stride": 4,
    }
    assert "seed" not in found
    assert "output_dir" not in found


def test_the_test_measures_as_validation_does(tmp_path: Path) -> None:
    settings = {"horizon": 3, "samples": 5, "split_seed": 7, "per_device_eval_batch_size": 6}
    found = read(tmp_path, settings={**SETTINGS, **settings}).evaluation
    expected = {"horizon": 3, "rollouts": 5, "split_seed": 7, "test_split": 10, "calibration_data": "rows.jsonl"}
    expected["calibration_batch_size"] = 6
    assert {name: found[name] for name in expected} == expected
    assert (found["feature_model"], found["calibration_split"], found["device"]) == ("some/model", "train", "cpu")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"output_dir": None}, "no output folder"),
        ({"methods": None}, "no methods"),
        ({"methods": None, "model": "some/model"}, "this is the recipe of one run, for `ebft train --config`"),
        ({"method": {}}, "unknown key 'method' in the study; there is .*; did you mean 'methods'"),
        ({"methods": {"mine": {}}}, "the method mine is none of ebft, sft, rlvr; say which with `method: ebft`"),
        ({"methods": {"stf": {}}}, "the method stf is none of ebft, sft, rlvr; did you mean 'sft'"),
        (
            {"methods": {"sft": {"search": {"learning_rate": ["fast"]}}}},
            "`search` of the method sft: learning_rate='fast' is not a number",
        ),
        (
            {"methods": {"ebft": {"settings": {"pack_training": True}}}},
            "unknown setting 'pack_training' of `ebft train`: it is one of `ebft sft`; .* put it under that method",
        ),
        ({"methods": {"a": {"method": "stf"}}}, "is not one of ebft, sft, rlvr; did you mean 'sft'"),
        (
            {"methods": {"ebft": {"serach": {}}}},
            "unknown key 'serach' in the method ebft; .*; did you mean 'search'",
        ),
        ({"methods": {"ebft": 3}}, "the method ebft is a mapping"),
        ({"methods": {"ebft": {"grid": {"gama": [0]}}}}, "unknown setting 'gama' in `grid`.*did you mean 'gamma'"),
        ({"methods": {"ebft": {"search": {"lr": [0]}}}}, "'lr' in `search`.*here it is called 'learning_rate'"),
        ({"methods": {"ebft": {"grid": {"gamma": 0}}}}, "gamma is a list of values"),
        ({"methods": {"ebft": {"grid": {"gamma": [0, 0.0]}}}}, "gamma has a value twice"),
        ({"methods": {"ebft": {"grid": {"alpha": [2]}}}}, "ebft,alpha=2: alpha=2.0 must lie between 0 and 1"),
        ({"methods": {"ebft": {"settings": {"seed": 1}}}}, "seed in `settings` of the method ebft is decided"),
        ({"methods": {"ebft": {"after": "sft"}}}, "starts after 'sft', which is not one of the methods above"),
        (
            {"methods": {"sft": {"grid": {"max_length": [8, 9]}}, "ebft": {"after": "sft"}}},
            "which has several settings of max_length",
        ),
        (
            {"methods": {"sft": {"seeds": [1, 2]}, "ebft": {"after": "sft"}}},
            "has the seed 0, which sft before it has not",
        ),
        (
            {"methods": {"ebft": {"grid": {"gamma": [0]}, "search": {"gamma": [1]}}}},
            "gamma of the method ebft is both in `grid` and in `search`",
        ),
        ({"seeds": [0, 0]}, "`seeds` has a number twice"),
        ({"seeds": 3}, "`seeds` is a list of whole numbers"),
        ({"settings": {**SETTINGS, "model": ""}}, "no model"),
        ({"settings": {**SETTINGS, "validation_split": 0}}, "`search` needs validation data"),
        ({"settings": {**SETTINGS, "test_split": 0}}, "no test data: set `test_split`"),
        ({"evaluation": {"tasks": ["humanevil"]}}, "unknown task 'humanevil'"),
        ({"evaluation": {"output": "x"}}, "output in `evaluation` is decided by the study"),
        (
            {"evaluation": {"calibration_data": "rows.jsonl", "calibration_split": "train", "test_split": 0}},
            "are the train",
        ),
        ({"paper": "code"}, "`paper: code` is not one of qa_code"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        read(tmp_path, **changes)


def test_what_was_chosen_on_is_no_test(tmp_path: Path) -> None:
    rows = tmp_path / "held.jsonl"
    rows.write_text('{"text": "x"}\n')
    settings = {**SETTINGS, "test_split": 0, "validation_dataset": str(rows)}
    with pytest.raises(ConfigError, match="are the validation data, on which learning rates are chosen"):
        # A file has no splits: by another name of the split it is the same text.
        read(tmp_path, settings=settings, evaluation={"calibration_data": str(rows), "calibration_split": "test"})


def test_files_that_are_no_studies(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such study"):
        read_study(tmp_path / "nothing.yaml")
    with pytest.raises(ConfigError, match="is a folder"):
        read_study(tmp_path)
