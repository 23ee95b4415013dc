"""What is wrong with answers beside their scores: how many are empty, were cut off, or are no programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MANY_EMPTY = 0.05  # a larger share of empty answers is worth a note: the prompt or the stop strings may be wrong
CUT_OFF = ("length", "context")  # of how a completion ended: there was no room for more
_SHOWN = 300  # characters of an example in a note; the results have all of it


def is_empty(text: str) -> bool:
    return not text.strip()


def note_on_empty(empty: int, total: int) -> str | None:
    if total == 0 or empty <= MANY_EMPTY * total:
        return None
    return f"{empty} of {total} answers are empty"


def why_zero(counts: Mapping[str, int], total: int, example: Mapping[str, Any]) -> str:
    """One line for a score of zero: what there is of each kind, and one prompt with its answer."""
    kinds = ", ".join(f"{number} {kind.replace('_', ' ')}" for kind, number in counts.items())
    end = example.get("message") or example.get("finish")
    return (
        f"the score is zero: of {total} answers {kinds}. For example {example['task_id']}: after the prompt "
        f"{_end_of(example['prompt'])} the answer is {_start_of(example['completion'])}" + (f" ({end})" if end else "")
    )


def _start_of(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")


def _end_of(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else "..." + text[-_SHOWN:])
