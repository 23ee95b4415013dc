"""Progress of a task that may resume in the middle."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

logger = logging.getLogger(__name__)


@contextmanager
def progress(title: str, total: int, done: int) -> Iterator[Callable[[int], Any]]:
    """A bar on standard error; in a log file, a line at the start."""
    from tqdm.auto import tqdm

    if not sys.stderr.isatty():
        logger.info(f"{title}: {done} of {total} are there")
    with tqdm(total=total, initial=done, desc=title, disable=None) as bar:
        yield bar.update
