"""How far a long job is, and how long it will still take: a bar in a terminal, in a log file a line a minute."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

logger = logging.getLogger(__name__)

SECONDS = 60.0  # between two lines in a log file
Item = TypeVar("Item")


@contextmanager
def progress(title: str, total: int | None, done: int = 0, leave: bool = True) -> Iterator[Callable[[int], None]]:
    """Yields a function that is called with the number of things done since its last call.

    Args:
        total: None if it is not known; then there is no time left to tell.
        done: of the total before this began, in a job that resumes.
        leave: whether it is worth a line of its own, however short: the bar stays, and a log file says that it began
            and that it ended.
    """
    from tqdm.auto import tqdm

    # tqdm's own lock is shared between processes, which nothing here needs, and it leaves a traceback behind when a
    # signal ends the program while it is made.
    tqdm.set_lock(threading.RLock())
    lines = _Lines(title, total, done)
    if leave and not sys.stderr.isatty():
        logger.info(f"{title}: {lines.share()}")
    with tqdm(total=total, initial=done, desc=title, leave=leave, disable=None) as bar:

        def advance(count: int) -> None:
            bar.update(count)
            if not sys.stderr.isatty():
                lines.advance(count)

        yield advance
    if lines.spoken or (leave and not sys.stderr.isatty()):
        lines.end()


def tracked(items: Iterable[Item], title: str, total: int | None) -> Iterator[Item]:
    with progress(title, total, leave=False) as advance:
        for item in items:
            yield item
            advance(1)


class _Lines:
    """In a log file: a line a minute, and one at the end."""

    def __init__(self, title: str, total: int | None, done: int) -> None:
        self.title, self.total, self.first, self.done = title, total, done, done
        self.start = self.last = time.monotonic()

    def advance(self, count: int) -> None:
        self.done += count
        now = time.monotonic()
        if now - self.last >= SECONDS:
            self.last = now
            logger.info(f"{self.title}: {self.share()}{self._left(now)}")

    @property
    def spoken(self) -> bool:
        """Whether it took long enough for a line."""
        return self.last > self.start

    def end(self) -> None:
        logger.info(f"{self.title}: {self.share()}, after {duration(time.monotonic() - self.start)}")

    def share(self) -> str:
        return f"{self.done:,}" if self.total is None else f"{self.done:,} of {self.total:,}"

    def _left(self, now: float) -> str:
        if self.total is None or self.done == self.first:
            return ""
        return f", {duration((now - self.start) / (self.done - self.first) * (self.total - self.done))} left"


def duration(seconds: float) -> str:
    """As a person would write it."""
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 10 or not seconds else f"{seconds:.2g} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 100 * 3600 else f"{seconds / 3600:,.0f} h"
