"""What ebft says while it works. Library code logs to `ebft.*`; commands choose what of it reaches the terminal.

`logger.info` is shown as it is, `logger.warning` and above behind `note: `. Long jobs have a progress bar in a
terminal, and in a log file a line a minute.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

LEVELS = ("debug", "info", "warning", "error", "critical")
SECONDS = 60.0  # between two lines of progress in a log file
Item = TypeVar("Item")


class _Stderr(logging.Handler):
    """Writes to whatever standard error is at the time, on a line of its own below any progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        text = ("note: " if record.levelno >= logging.WARNING else "") + printable(self.format(record))
        # In a log file there is no line to clear, and a bar would be drawn once more for every message.
        bars = getattr(sys.modules.get("tqdm"), "tqdm", None) if sys.stderr.isatty() else None
        (print if bars is None else bars.write)(text, file=sys.stderr)


def printable(text: str) -> str:
    """Names of files, tasks and settings come from elsewhere: control characters would steer the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def plot_label(name: str) -> str:
    """A name as it is: matplotlib would read TeX between dollars, and hide what begins with an underscore."""
    shown = printable(name).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


def show_messages(level: str = "info") -> None:
    """Called by commands: messages of this level and above go to standard error."""
    ours = logging.getLogger("ebft")
    if not any(isinstance(handler, _Stderr) for handler in ours.handlers):
        ours.addHandler(_Stderr())
        ours.propagate = False
    ours.setLevel(level.upper() if level in LEVELS else "INFO")


@contextmanager
def each_message_once() -> Iterator[None]:
    """What has been said in the block is not said there again."""
    said: set[str] = set()

    def is_new(record: logging.LogRecord) -> bool:
        before = len(said)
        said.add(record.getMessage())
        return len(said) > before

    handlers = [handler for handler in logging.getLogger("ebft").handlers if isinstance(handler, _Stderr)]
    for handler in handlers:
        handler.addFilter(is_new)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(is_new)


class _LogFile:
    """A file for tqdm that logs what it would draw."""

    def write(self, text: str) -> None:
        if text := text.replace("\x1b[A", "").strip():
            logger.info(text)

    def flush(self) -> None:
        pass


@contextmanager
def progress(
    title: str, total: int | None, done: int = 0, leave: bool = True, unit: str = "it"
) -> Iterator[Callable[[int], Any]]:
    """Yields a function that is called with the number of things done since its last call.

    Args:
        total: None if it is not known.
        done: of the total before this began, in a job that resumes.
        leave: whether it is worth a line of its own, however short: the bar stays, and a log file says that it began
            and that it ended.
        unit: of speed; "B" for bytes, which are shown in MB.
    """
    from tqdm import tqdm

    # tqdm's own lock is shared between processes, which nothing here needs, and it leaves a traceback behind when a
    # signal ends the program while it is made.
    tqdm.set_lock(threading.RLock())
    look: dict[str, Any] = {"unit": unit, "unit_scale": unit == "B"}
    if not sys.stderr.isatty():
        known = "{n_fmt} of {total_fmt} [{elapsed}<{remaining}, {rate_fmt}]"
        look["bar_format"] = "{desc}: " + ("{n_fmt} [{elapsed}, {rate_fmt}]" if total is None else known)
        look |= {"file": _LogFile(), "mininterval": SECONDS, "miniters": 1, "delay": 0 if leave else SECONDS}
    with tqdm(total=total, initial=done, desc=title, leave=leave, **look) as bar:
        yield bar.update


def tracked(items: Iterable[Item], title: str, total: int | None) -> Iterator[Item]:
    with progress(title, total, leave=False) as advance:
        for item in items:
            yield item
            advance(1)


def duration(seconds: float) -> str:
    """As a person would write it."""
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 10 or not seconds else f"{seconds:.2g} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 100 * 3600 else f"{seconds / 3600:,.0f} h"
