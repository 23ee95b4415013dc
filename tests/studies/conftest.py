from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from ebft.config.evaluation import EvalOptions
from ebft.evaluate.tasks import task_settings
from ebft.studies import commands, launchers
from tests.studies.commands import SETTINGS
from tests.studies.made_runs import make_run

STUB = Path(__file__).with_name("stub_run.py")


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
