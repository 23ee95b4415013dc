"""Files of studies and sweeps: what they mean, and what is refused before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ebft.config.recipe import load_recipe
from ebft.errors import ConfigError
from ebft.studies.study import Plan, Study, read_study, read_sweep
from tests.studies.conftest import SETTINGS, write_study

TESTED = {**SETTINGS, "test_split": 10}
METHODS: dict[str, Any] = {
    "sft": {"search": {"learning_rate": [1, "2e-0"]}},
    "ebft": {"grid": {"gamma": [0, 0.1]}},
    "warm": {"method": "ebft", "after": "sft"},
}


def read(folder: Path, **changes: Any) -> Study:
    given = {"methods": METHODS, "settings": TESTED, "evaluation": {}, **changes}
    return read_study(write_study(folder, **given))


def sweep(tmp_path: Path, sets: list[str], command: str = "train", **changes: Any) -> Study:
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump({**SETTINGS, "output_dir": str(tmp_path / "out"), **changes}, sort_keys=False))
    return read_sweep(file, {}, sets, command)


def test_rows_are_methods_in_their_settings(tmp_path: Path) -> None:
    rows = read(tmp_path, seeds=[0, 1, 0]).rows
    assert [row.name for row in rows] == ["sft", "ebft,gamma=0", "ebft,gamma=0.1", "warm"]
    assert rows[0].candidates == [{"learning_rate": 1.0}, {"learning_rate": 2.0}]
    assert (rows[3].command, rows[3].needs, rows[3].seeds) == ("train", {"model": "sft"}, [0, 1])
    # Settings of recipes lie under those of the study.
    (tmp_path / "all.yaml").write_text("gamma: 0.5\nalpha: 0.5\nhorizon: 4\nseed: 9\noutput_dir: x\n")
    (tmp_path / "own.yaml").write_text("alpha: 0.25\nhorizon: 2\n")
    methods = {"ebft": {"recipe": "own.yaml", "settings": {"stride": 4}}}
    (row,) = read(tmp_path, recipe="all.yaml", settings={**TESTED, "horizon": 3}, methods=methods).rows
    expected = {"gamma": 0.5, "alpha": 0.25, "horizon": 3, "stride": 4}
    assert row.settings.items() >= expected.items()
    assert not row.settings.keys() & {"seed", "output_dir"}


def test_the_test_measures_as_validation_does(tmp_path: Path) -> None:
    settings = {"horizon": 3, "samples": 5, "split_seed": 7, "per_device_eval_batch_size": 6, "eval_samples": 8}
    expected = {"horizon": 3, "rollouts": 8, "split_seed": 7, "test_split": 10, "calibration_data": "rows.jsonl"}
    expected |= {"calibration_batch_size": 6, "feature_model": "some/model", "calibration_split": "train"}
    assert read(tmp_path, settings={**TESTED, **settings}).evaluation.items() >= expected.items()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"methods": {"ebft": {"grid": {"gama": [0]}}}}, "ebft,gama=0: unknown setting 'gama'.*; did you mean 'gamma'"),
        ({"methods": {"ebft": {"grid": {"gamma": [0]}, "search": {"gamma": [1]}}}}, "both in `grid` and in `search`"),
        ({"methods": {"sft": {"grid": {"max_length": [8, 9]}}, "ebft": {"after": "sft"}}}, "with the same `grid`"),
        ({"choose_by": "crossentropy"}, "does not measure .*crossentropy.* did you mean 'cross_entropy'"),
        ({"settings": {**TESTED, "validation_split": 0}}, "does not measure .*set validation_split"),
        ({"settings": {**TESTED, "test_split": 0}}, "no test data; set `test_split`"),
        ({"evaluation": {"calibration_data": "rows.jsonl", "calibration_split": "train", "test_split": 0}}, "trained"),
        # A file has no splits: by another name of the split it is the same text.
        (
            {
                "settings": {**TESTED, "test_split": 0, "validation_dataset": __file__},
                "evaluation": {"calibration_data": __file__, "calibration_split": "test"},
            },
            "chosen",
        ),
    ],
)
def test_what_is_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        read(tmp_path, **changes)


def test_a_sweep_is_every_combination_once_in_order_and_flags_win_over_the_section(tmp_path: Path) -> None:
    section = {"gamma": [7], "feature_layers": [[0.5], [0.25, 0.75]]}
    runs = Plan(sweep(tmp_path, ["gamma=0", "gamma=0.1", "learning_rate=1e-6", "model=a/one"], sweep=section)).runs
    names = [
        f"gamma={g},feature_layers={n},learning_rate=1e-06,model=one" for g in (0, 0.1) for n in ("0.5", "0.25+0.75")
    ]
    assert [run.name for run in runs] == names
    assert [run.output for run in runs] == [tmp_path / "out" / name for name in names]
    assert not (tmp_path / "out").exists()
    for run in runs:
        run.prepare()
        assert load_recipe(run.arguments[2], {}).given == run.settings
    assert runs[3].settings["feature_layers"] == [0.25, 0.75]
    assert len(Plan(sweep(tmp_path, ["max_length=128,256"], "sft")).runs) == 2
    for sets, words in ([], "a sweep needs --set"), (["gamma=0.1,0.10"], "same name"), (["gamma=fast"], "not a number"):
        with pytest.raises(ConfigError, match=words):
            sweep(tmp_path, sets)
