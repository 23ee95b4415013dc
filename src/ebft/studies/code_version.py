"""Which code a study ran with: ebft's version, and the commit where it is a checkout."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

from ebft.version import __version__


@cache
def describe() -> dict[str, str]:
    found = {"ebft": __version__}
    here = Path(__file__).resolve().parent
    commit = _git(here, "rev-parse", "HEAD")
    if commit and _git(here, "ls-files", "--error-unmatch", Path(__file__).name):  # else a checkout of something else
        changed = _git(here, "status", "--porcelain", "--untracked-files=no")
        found["commit"] = commit + (" with changes" if changed else "")
    return found


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
