"""Where a result comes from: command, date, code and machine."""

from __future__ import annotations

import platform
import shlex
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch


def command_and_date(script: str, arguments: Sequence[str]) -> dict[str, str]:
    return {
        "command": shlex.join(["python", f"benchmarks/{script}", *arguments]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def commit() -> str | None:
    """Of the code that is measured, if git knows it."""
    found, changed = _git("rev-parse", "HEAD"), _git("status", "--porcelain", "src", "benchmarks/*.py")
    return f"{found} with changes" if found and changed else found


def _git(*arguments: str) -> str | None:
    command = ["git", "-C", str(Path(__file__).parents[1]), *arguments]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def device_name(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
