"""`ebft sweep` as the tests call it, what stub_run.py has noted, and what a command imports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from ebft import cli


def sweep(recipe: Path, *arguments: object) -> int:
    return cli.main(["sweep", "--config", str(recipe), *map(str, arguments)])


def attempts(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "attempts.jsonl").read_text().splitlines()]


def imports_torch(*arguments: str) -> bool:
    """Whether a command, in a process of its own, imports torch: that takes seconds."""
    code = "import sys; from ebft import cli; cli.main(sys.argv[1:]); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1] == "True"
