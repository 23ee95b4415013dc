"""What users rely on is still there. `collect` writes the file that this compares with.

What is dropped on purpose is named here; new settings, flags and names may come without a word.
"""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import TrainingArguments

from ebft.baselines.rewards import COUNTS
from ebft.config.recipe import TRAINING, field_types
from tests.contracts import collect

BEFORE: dict[str, Any] = yaml.safe_load(collect.FILE.read_text(encoding="utf-8"))
SETTINGS: dict[str, dict[str, str]] = BEFORE["settings"]


@pytest.fixture(scope="module")
def now(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return collect.collect(tmp_path_factory.mktemp("contracts"))


@pytest.mark.parametrize("command", SETTINGS)
def test_every_setting_has_its_name_type_and_default(command: str, now: dict[str, Any]) -> None:
    known = {**now["settings"]["train"], **now["settings"][command]}
    assert {name: known.get(name, "gone") for name in SETTINGS[command]} == SETTINGS[command]
    if command in TRAINING:
        assert {f.name for f in fields(TrainingArguments) if f.init} <= field_types(command).keys()


@pytest.mark.parametrize("command", BEFORE["flags"])
def test_every_flag_is_in_the_help_of_its_command(command: str) -> None:
    flags = {*BEFORE["flags"][command], *collect.of_settings(command, SETTINGS)}
    assert flags <= {*collect.flags_of(command)}


@pytest.mark.parametrize("part", ["metrics", "results of a run", "files of a run", "files of eval"])
def test_every_name_is_still_there(part: str, now: dict[str, Any]) -> None:
    assert {*BEFORE[part]} <= {*now[part]}


def test_every_metric_is_explained(now: dict[str, Any]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
    names = [*now["metrics"], *(f"reward_counts/{name}" for name in COUNTS)]
    assert [name for name in names if f"`{name}`" not in page] == ["total_flos"], "which is transformers' own"


def test_python_names_and_exit_codes(now: dict[str, Any]) -> None:
    assert now["exit codes"] == BEFORE["exit codes"]
    for name, parameters in BEFORE["python"].items():
        assert now["python"][name][: len(parameters)] == parameters, name
        assert all("=" in added for added in now["python"][name][len(parameters) :]), name


def test_shipped_recipes_and_studies_mean_what_they_meant() -> None:
    now = collect.hashes()
    changed = [name for name, before in BEFORE["shipped"].items() if now.get(name) != before]
    assert not changed, "`python -m tests.contracts.collect shipped` prints their settings, for a diff of two commits"
