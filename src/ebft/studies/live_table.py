"""A table that is drawn anew in place while jobs run. Where there is no terminal, the launcher's lines say it all."""

from __future__ import annotations

import logging
import shutil
import sys
import time
from collections.abc import Callable, Sequence

Table = Sequence[tuple[str, ...]]


def columns(table: Table) -> list[str]:
    """The cells below each other."""
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


class LiveTable:
    def __init__(self, table: Callable[[], Table], every: float) -> None:
        self._table, self._every = table, every
        self._drawn, self._next = 0, 0.0
        self._launchers = logging.getLogger("ebft.studies.local_launcher")
        self._on = sys.stdout.isatty()
        if self._on:  # its lines would stand between those of the table
            self._launchers.setLevel(logging.WARNING)

    def show(self, now: bool = False) -> None:
        if not self._on or (time.monotonic() < self._next and not now):
            return
        self._next = time.monotonic() + self._every
        size = shutil.get_terminal_size()
        lines = [line[: size.columns - 1] for line in columns(self._table())]
        if len(lines) > size.lines - 1:  # what is waiting or done is of less interest than what runs
            lines = [line for line in lines if "  finished" not in line and "  waiting" not in line][: size.lines - 1]
        up = f"\x1b[{self._drawn}A\x1b[J" if self._drawn else ""
        print(up + "\n".join(lines), flush=True)
        self._drawn = len(lines)

    def close(self) -> None:
        if self._on and self._drawn:
            print(f"\x1b[{self._drawn}A\x1b[J", end="", flush=True)  # the command prints the final one
        self._launchers.setLevel(logging.NOTSET)
