"""A job: one `ebft` command with a log, as sweeps and studies give it to a launcher.

Every attempt at a job begins with its command in the log, whoever starts it: what was wrong with the last attempt can
be read there later, also of jobs that ran on a cluster.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Protocol

PROMPT = "$ "  # begins the line of a command in a log
_ERROR = "ebft: "  # begins an error message of the command
STOPPED = "stopped"  # the message of a run that was interrupted


class Job(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def folder(self) -> Path:
        """Of the sweep or the study."""

    @property
    def log(self) -> Path: ...

    @property
    def arguments(self) -> list[str]:
        """Of the command `ebft`. The same arguments resume what was stopped."""

    @property
    def on_cpu(self) -> bool:
        """Whether its settings ask for a CPU."""

    @property
    def finished(self) -> bool: ...

    def write(self) -> None:
        """What the command reads, such as a recipe."""


def command_line(job: Job) -> str:
    return shlex.join(["ebft", *job.arguments])


def last_attempt(log: Path) -> list[str]:
    """What the last attempt printed; nothing if there was none."""
    if not log.is_file():
        return []
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    starts = [place for place, line in enumerate(lines) if line.startswith(PROMPT)]
    return lines[starts[-1] + 1 :] if starts else []


def error_in(lines: list[str]) -> str | None:
    """The first error message is the cause; None if there is none."""
    return next((line.removeprefix(_ERROR) for line in lines if line.startswith(_ERROR)), None)


def last_error(log: Path) -> str | None:
    """Why the last attempt failed; None if it did not, was stopped, or is still running."""
    found = error_in(last_attempt(log))
    return None if found == STOPPED else found
