"""`ebft sweep` and `ebft study run` as the tests call them, with what stub_run.py has noted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ebft import cli
from ebft.config.evaluation import EvalOptions
from ebft.evaluate.tasks import task_settings
from ebft.studies import commands, launchers
from tests.studies.made_study import make_run

STUB = Path(__file__).with_name("stub_run.py")
SETTINGS: dict[str, Any] = {"model": "some/model", "dataset": ["rows.jsonl"], "use_cpu": True}


def sweep(recipe: Path, *arguments: object) -> int:
    return cli.main(["sweep", "--config", str(recipe), *map(str, arguments)])


def run(study: Path, *arguments: object) -> int:
    return cli.main(["study", "run", str(study), *map(str, arguments)])


def write_study(folder: Path, methods: dict[str, Any], **changes: Any) -> Path:
    given = {"output_dir": str(folder / "out"), "seeds": [0, 1], "evaluation": {"tasks": ["humaneval"], "limit": 3}}
    given |= {**changes, "settings": {**SETTINGS, **changes.get("settings", {})}, "methods": methods}
    file = folder / "study.yaml"
    file.write_text(yaml.safe_dump(given, sort_keys=False))
    return file


def attempts(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "attempts.jsonl").read_text().splitlines()]


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    one = make_run(tmp_path / "one", [1.3, 1.1, 1.2])
    two = make_run(tmp_path / "two", [1.3, 1.25], "sft", finished=False)
    with (two / "metrics.jsonl").open("a") as file:
        file.write('{"step": 20, "eval_cf')  # the line that a running run is writing
    return [str(one), str(two)]


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins for runs and evaluations, which read nothing."""
    monkeypatch.setattr(launchers, "ENTRY", (str(STUB),))
    monkeypatch.setattr(commands, "check_inputs", lambda plan: None)
    # What `ebft eval` would write of its settings; to find out takes an import of seconds in every process.
    monkeypatch.setenv("STUB_SETTINGS", json.dumps(task_settings("humaneval", EvalOptions(tasks=["humaneval"]))))


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump({**SETTINGS, "output_dir": str(tmp_path / "out")}))
    return file
