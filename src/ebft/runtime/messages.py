"""What ebft says while it works. Library code logs to `ebft.*`; commands choose what of it reaches the terminal.

`logger.info` is shown as it is, `logger.warning` and above behind `note: `.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

LEVELS = ("debug", "info", "warning", "error", "critical")


class _Stderr(logging.StreamHandler):
    """Writes to whatever standard error is at the time, on a line of its own below any progress bar."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self.setFormatter(_Plain())

    @property
    def stream(self) -> Any:
        return sys.stderr

    def emit(self, record: logging.LogRecord) -> None:
        # In a log file there is no line to clear, and a bar would be drawn once more for every message.
        bars = getattr(sys.modules.get("tqdm"), "tqdm", None) if sys.stderr.isatty() else None
        with bars.external_write_mode(file=sys.stderr) if bars is not None else nullcontext():
            super().emit(record)


def printable(text: str) -> str:
    """Names of files, tasks and settings come from elsewhere: control characters would steer the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def plot_label(name: str) -> str:
    """A name as it is: matplotlib would read TeX between dollars, and hide what begins with an underscore."""
    shown = printable(name).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


class _Plain(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = printable(super().format(record))
        return f"note: {text}" if record.levelno >= logging.WARNING else text


def show_messages(level: str = "info") -> None:
    """Called by commands: messages of this level and above go to standard error."""
    logger = logging.getLogger("ebft")
    if not any(isinstance(handler, _Stderr) for handler in logger.handlers):
        logger.addHandler(_Stderr())
        logger.propagate = False
    logger.setLevel(level.upper() if level in LEVELS else "INFO")


@contextmanager
def notes_if_it_succeeds() -> Iterator[None]:
    """Notes wait for the end of the block, and are dropped where it fails: an error stands alone."""
    held: list[logging.LogRecord] = []

    def hold(record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING:
            held.append(record)
        return record.levelno < logging.WARNING

    with _filtered(hold) as handlers:
        yield
    for record in held:
        for handler in handlers:
            handler.handle(record)


@contextmanager
def each_message_once() -> Iterator[None]:
    """What has been said in the block is not said there again."""
    said: set[str] = set()

    def is_new(record: logging.LogRecord) -> bool:
        before = len(said)
        said.add(record.getMessage())
        return len(said) > before

    with _filtered(is_new):
        yield


@contextmanager
def _filtered(wanted: Callable[[logging.LogRecord], bool]) -> Iterator[list[_Stderr]]:
    """The handlers of commands, which show only what is wanted in the block."""
    handlers = [handler for handler in logging.getLogger("ebft").handlers if isinstance(handler, _Stderr)]
    for handler in handlers:
        handler.addFilter(wanted)
    try:
        yield handlers
    finally:
        for handler in handlers:
            handler.removeFilter(wanted)
