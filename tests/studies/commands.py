"""`ebft sweep` as the tests call it, and what stub_run.py has noted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ebft import cli


def sweep(recipe: Path, *arguments: object) -> int:
    return cli.main(["sweep", "--config", str(recipe), *map(str, arguments)])


def attempts(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "attempts.jsonl").read_text().splitlines()]
