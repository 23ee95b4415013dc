"""`ebft sweep` and `ebft study run` as the tests call them, and what stub_run.py has noted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from ebft import cli

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
