"""Waiting for a file descriptor."""

from __future__ import annotations

import select


def readable_within(descriptor: int, seconds: float) -> bool:
    """Whether there is something to read, or the other end is closed.

    Not by `select.select`, which knows only numbers below 1024: a program that trains may have more files open.
    """
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(1000 * seconds))
