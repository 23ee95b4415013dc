"""What ebft says while it works. Library code logs to `ebft.*`; commands choose what of it reaches the terminal.

`logger.info` is shown as it is, `logger.warning` and above behind `note: `. Long jobs have a progress bar in a
terminal, and in a log file a line a minute.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ebft.runtime.files import Json

logger = logging.getLogger(__name__)

LEVELS = ("debug", "info", "warning", "error", "critical")
SECONDS = 60.0  # between two lines of progress in a log file


class _Stderr(logging.Handler):
    """Writes to whatever standard error is at the time, on a line of its own below any progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        text = ("note: " if record.levelno >= logging.WARNING else "") + printable(self.format(record))
        # In a log file there is no line to clear, and a bar would be drawn once more for every message.
        bars = getattr(sys.modules.get("tqdm"), "tqdm", None) if sys.stderr.isatty() else None
        (print if bars is None else bars.write)(text, file=sys.stderr)


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
    """One line on standard error; a progress bar that is still there would be drawn again after it."""
    for bar in list(getattr(getattr(sys.modules.get("tqdm"), "tqdm", None), "_instances", ())):
        bar.close()
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


class _LogFile:
    """A file for tqdm that logs what it would draw."""

    def write(self, text: str) -> None:
        if text := text.replace("\x1b[A", "").strip():
            logger.info(text)


@contextmanager
def progress(title: str, total: int | None, done: int = 0, unit: str = "it") -> Iterator[Callable[[int], object]]:
    """Yields a function that is called with the number of things done since its last call.

    total: None if it is not known. done: of it before this began, in a job that resumes. unit: "B" for bytes.
    """
    from tqdm import tqdm

    tqdm.set_lock(threading.RLock())  # its own is one of processes, which says too much when a signal ends the program
    look: Json = {"unit": unit, "unit_scale": unit == "B"}
    if not sys.stderr.isatty():
        known = "{n_fmt} of {total_fmt} [{elapsed}<{remaining}, {rate_fmt}]"
        look |= {"file": _LogFile(), "mininterval": SECONDS, "miniters": 1, "delay": SECONDS}
        look["bar_format"] = "{desc}: " + ("{n_fmt} [{elapsed}, {rate_fmt}]" if total is None else known)
    with tqdm(total=total, initial=done, desc=title, leave=False, **look) as bar:
        yield bar.update
