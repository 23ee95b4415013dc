"""The page about commands: what `ebft COMMAND --help` says, for every command that `ebft --help` names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = """# Commands

What `ebft COMMAND --help` says, word for word. Every command also takes `--log_level`: debug, info, warning, error or
critical. Exit codes: 0 done, 1 failed, 2 the command or its input is wrong, 75 stopped by a scheduler's signal, 130
stopped with Ctrl-C. After the last two the same command continues (`ebft train`, `sft` and `rlvr` with `--resume`).

"""


def commands_page() -> str:
    """The text of the page about commands."""
    usage = help_of()
    parts = [COMMANDS, _section("ebft", usage)]
    for command in commands(usage):
        parts.append(_section(f"ebft {command}", help_of(*command.split())))
    return "".join(parts)


def _section(title: str, text: str) -> str:
    return f"## {title}\n\n```text\n{text.strip()}\n```\n\n"


def commands(usage: str) -> list[str]:
    """The commands that `ebft --help` names, as `study run`, where a second word belongs to the name."""
    found = re.findall(r"^  ebft ([a-z]+(?: (?:run|report))?) ", usage, flags=re.MULTILINE)
    return list(dict.fromkeys(found))


def help_of(*command: str) -> str:
    environment = {**os.environ, "COLUMNS": "110", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-m", "ebft.cli", *command, "--help"], capture_output=True, text=True, env=environment
    )
    if done.returncode:
        raise RuntimeError(f"ebft {' '.join(command)} --help failed: {done.stderr}")
    return done.stdout
