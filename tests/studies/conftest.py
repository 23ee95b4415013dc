"""`ebft sweep` and `ebft study run` as the tests call them, with what stub_run.py has noted; runs written by hand, so
that every number in a comparison is known."""

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
from tests.studies.made_study import write_jsonl

STUB = Path(__file__).with_name("stub_run.py")
RULER = {"context_length": 48, "network": "aa", "validation": "bb", "samples": 4, "whitening": "reference"}
SETTINGS: dict[str, Any] = {"model": "some/model", "dataset": ["rows.jsonl"], "use_cpu": True}


def sweep(recipe: Path, *arguments: object) -> int:
    return cli.main(["sweep", "--config", str(recipe), *map(str, arguments)])


def run(study: Path, *arguments: object) -> int:
    return cli.main(["study", "run", str(study), *map(str, arguments)])


def write_study(folder: Path, methods: dict[str, Any], **changes: Any) -> Path:
    """Changes of None are left out."""
    given = {"output_dir": str(folder / "out"), "seeds": [0, 1], "evaluation": {"tasks": ["humaneval"], "limit": 3}}
    given |= {**changes, "settings": {**SETTINGS, **changes.get("settings", {})}, "methods": methods}
    file = folder / "study.yaml"
    file.write_text(yaml.safe_dump({key: value for key, value in given.items() if value is not None}, sort_keys=False))
    return file


def attempts(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "attempts.jsonl").read_text().splitlines()]


def make_run(
    folder: Path,
    values: list[float],
    method: str = "ebft",
    finished: bool = True,
    spent: bool = True,
    tilt: float = 0.0,
    **changes: Any,
) -> Path:
    """values: the feature-matching losses of its validations. changes: in how these measure."""
    lines: list[dict[str, Any]] = []
    for place, value in enumerate(values):
        entry: dict[str, Any] = {"step": 10 * place, "eval_cfm": value, "eval_cfm_se": 0.01}
        entry |= {"eval_cross_entropy": value + 1, "eval_cross_entropy_se": 0.02, "eval_whitened_proxy": -value}
        if spent:
            entry |= {"spent/seconds": 2.0 * place, "spent/tokens": 100 * place, "spent/flops": 1e9 * place}
        lines += [{"step": 10 * place, "loss": 0.1}, entry]
    write_jsonl(folder / "metrics.jsonl", lines)
    results: dict[str, Any] = {"method": method, "ruler": {**RULER, **changes}}
    if finished:
        results["steps"] = 10 * (len(values) - 1)
    if finished and values:
        last, results["after"] = values[-1], {"eval_cfm": values[-1]}
        # Three sequences of very different difficulty: `tilt` makes the first easier and the last harder.
        of_all = {"tokens": 10, "contexts": 2, "whitened_proxy": -last}
        found = [{"log_probs": -10 * (last + n), "cfm": last + (n - 1) * (1 + tilt)} for n in range(3)]
        write_jsonl(folder / "validation-after.jsonl", [{"sequence": n, **of_all, **f} for n, f in enumerate(found)])
    (folder / "results.json").write_text(json.dumps(results))
    return folder


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
