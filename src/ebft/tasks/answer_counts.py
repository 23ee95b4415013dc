"""What is wrong with answers beside their scores: how many are empty, were cut off, or hold no code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ebft.method.measures import SumsAndCounts
from ebft.problems.answers import has_code

MANY_EMPTY = 0.05  # a larger share of empty answers is worth a note: the prompt or the stop strings may be wrong
CUT_OFF = ("length", "context")  # of how a completion ended: there was no room for more
KINDS = ("empty", "cut", "no_code")  # of answers that are no whole program, each counted once, the first that it is
_SHOWN = 300  # characters of an example in a note; the results have all of it


def is_empty(text: str) -> bool:
    return not text.strip()


def kind_of_answer(completion: str, finish: str, language: str) -> str | None:
    """One of KINDS; None for an answer that ended by itself and holds code."""
    if is_empty(completion):
        return "empty"
    if finish in CUT_OFF:
        return "cut"
    return None if has_code(completion, language) else "no_code"


def shares(rows: Iterable[Mapping[str, Any]], language: str) -> dict[str, dict[str, float]]:
    """Of each kind, its share of the answers to each problem."""
    counts: dict[str, int] = {}
    of_kind: dict[str, dict[str, int]] = {kind: {} for kind in KINDS}
    for row in rows:
        task_id = row["task_id"]
        counts[task_id] = counts.get(task_id, 0) + 1
        found = kind_of_answer(row["completion"], row["finish"], language)
        for kind, number in of_kind.items():
            number[task_id] = number.get(task_id, 0) + (kind == found)
    return {kind: {key: number[key] / counts[key] for key in counts} for kind, number in of_kind.items()}


def of_means(by_problem: Mapping[str, float]) -> SumsAndCounts:
    """A value of each problem, for their mean."""
    return SumsAndCounts(list(by_problem.values()), [1] * len(by_problem))


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
