"""What ebft says while it works. Library code logs to `ebft.*`; commands choose what of it reaches the terminal.

`logger.info` is shown as it is, `logger.warning` and above behind `note: `. Long jobs say how far they are.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

logger = logging.getLogger(__name__)

LEVELS = ("debug", "info", "warning", "error", "critical")
OFTEN, SELDOM = 10.0, 60.0  # seconds between two lines of progress, in a terminal and in a log file


class _Stderr(logging.Handler):
    """Writes to whatever standard error is at the time."""

    def emit(self, record: logging.LogRecord) -> None:
        print("note: " * (record.levelno >= logging.WARNING) + printable(self.format(record)), file=sys.stderr)


def show_messages(level: str = "info") -> None:
    """Called by commands: messages of this level and above go to standard error."""
    ours = logging.getLogger("ebft")
    if not any(isinstance(handler, _Stderr) for handler in ours.handlers):
        ours.addHandler(_Stderr())
        ours.propagate = False
    ours.setLevel(level.upper() if level in LEVELS else "INFO")


def quiet_libraries() -> None:
    """transformers tells much that is about itself."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def print_error(message: str) -> None:
    """One line on standard error."""
    print(f"ebft: {printable(' '.join(message.split()))}", file=sys.stderr)


def print_table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print(printable("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))).rstrip())


def printable(text: str) -> str:
    """Names of files, tasks and settings come from elsewhere: control characters would steer the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t\xa0" else c.encode("unicode_escape").decode() for c in text)


def plot_label(name: str) -> str:
    """A name as it is: matplotlib would read TeX between dollars, and hide what begins with an underscore."""
    shown = printable(name).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


def duration(seconds: float) -> str:
    """As a person would write it."""
    if seconds < 99.5:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:,.{int(seconds < 360_000)}f} h"


def progress(title: str, total: int | None, done: int = 0) -> AbstractContextManager[Callable[[int], None]]:
    """Gives a function to be called with the number of things done since its last call. It says now and then how far a
    long job is. total: None if it is not known. done: of it before this began, in a job that resumes."""
    every, start, first = OFTEN if sys.stderr.isatty() else SELDOM, time.monotonic(), done
    said = start

    def advance(number: int) -> None:
        nonlocal done, said
        done, now = done + number, time.monotonic()
        if now - said >= every and done > first:
            said, seconds_each = now, (now - start) / (done - first)
            left = "" if total is None else f" of {total:,}, {duration((total - done) * seconds_each)} left"
            logger.info(f"{title}: {done:,}{left}")

    return nullcontext(advance)
