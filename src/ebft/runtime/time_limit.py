"""A limit of time for Python code that came from elsewhere, such as a chat template."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn


class TookTooLong(Exception):
    """The code inside `time_limit` did not come to an end."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raises TookTooLong in what runs inside. Only in the main thread: signals reach no other."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def stop(number: int, frame: Any) -> NoReturn:
        raise TookTooLong(f"not finished after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
