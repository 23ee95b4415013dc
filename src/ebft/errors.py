"""Errors that a user can act on, and the words in them. Nothing heavy is imported here."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ConfigError(ValueError):
    """A setting is wrong; the message names the field, the value and the way out."""


class DataError(ValueError):
    """The user's data cannot be used; the message says what to change."""


class TrainingDiverged(RuntimeError):
    """Loss or reward are no longer numbers to learn from; the message says what to try."""


class SandboxError(RuntimeError):
    """The sandbox cannot start; the message says what is missing."""


class Preempted(BaseException):
    """A scheduler wants the machine back (SIGTERM, SIGUSR1), and what can be resumed from is on disk."""


def nearest(word: str, options: Iterable[str]) -> str:
    """The end of an error message that suggests what was meant; empty if nothing is close."""
    close = difflib.get_close_matches(word, list(options), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def how_to_install(extra: str) -> str:
    """The end of an error message about a package that one of our extras brings."""
    return f'install it with `pip install ".[{extra}]"` in a checkout of ebft'


def first_line(error: BaseException) -> str:
    """Libraries explain at length; the first line is what happened."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
