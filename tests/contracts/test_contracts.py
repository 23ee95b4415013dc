"""What users rely on is still there. `collect` and `dump_settings` write the files that this compares with.

What is dropped on purpose is named here; new settings, flags and names may come without a word.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from tests.contracts import collect, dump_settings

FLAGS_GONE = {"--reuse-processes"}


@pytest.fixture(scope="module")
def before() -> dict[str, Any]:
    return yaml.safe_load(collect.FILE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def now(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return collect.collect(tmp_path_factory.mktemp("contracts"))


@pytest.mark.parametrize("part", ["train", "transformers", "sft", "rlvr", "eval"])
def test_every_setting_has_its_name_type_and_default(part: str, before: dict[str, Any], now: dict[str, Any]) -> None:
    settings = dump_settings.plain(now["settings"])
    known = {**settings["transformers"], **settings["train"], **settings[part]}
    changed = {name: known.get(name, "gone") for name, value in before["settings"][part].items()}
    assert changed == before["settings"][part]


def test_every_flag_is_in_the_help_of_its_command(before: dict[str, Any], now: dict[str, Any]) -> None:
    lost = {command: {*flags} - {*now["flags"][command]} - FLAGS_GONE for command, flags in before["flags"].items()}
    assert not any(lost.values()), lost


NAMES = ["recipes", "metrics", "results of a run", *(f"files of {of}" for of in ("a run", "eval", "compare"))]


@pytest.mark.parametrize("part", NAMES)
def test_every_name_is_still_there(part: str, before: dict[str, Any], now: dict[str, Any]) -> None:
    assert {*before[part]} <= {*now[part]}


def test_exit_codes(before: dict[str, Any], now: dict[str, Any]) -> None:
    assert now["exit codes"] == before["exit codes"]


def test_python_names_take_what_they_took(before: dict[str, Any], now: dict[str, Any]) -> None:
    for name, parameters in before["python"].items():
        assert now["python"][name][: len(parameters)] == parameters, name
        assert all("=" in added for added in now["python"][name][len(parameters) :]), name


def test_shipped_recipes_and_studies_mean_what_they_meant() -> None:
    before = yaml.safe_load(dump_settings.FILE.read_text(encoding="utf-8"))
    now = dump_settings.plain(dump_settings.dump())
    for name, values in before.items():
        # As text, which tells 1 from 1.0.
        assert {n: json.dumps(v) for n, v in now[name].items()} == {n: json.dumps(v) for n, v in values.items()}, name
