"""What a task asks a model: prompts with their keys, and how the completions are scored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

Scored = dict[str, Any]  # {"metrics": {name: {"value", "standard_error", "count"}}, and further details}


class Asked(NamedTuple):
    """How the problems are put in one prompt style."""

    prompts: Sequence[str]
    stop: tuple[str, ...] = ()  # strings that end a completion
    answer_start: str = ""  # what the answer in a chat begins with, which is given to the model


@dataclass(frozen=True)
class ProblemSet:
    """
    Args:
        name: the start of the names of its files.
        keys: a key for each problem, unique in the set.
        asked: by prompt style, raw and chat.
        max_new_tokens: the default for its completions.
        score: from the completions of each problem, the file they are in and how each ended to metrics; None: later,
            by `ebft score`.
        skipped: why its answers cannot be scored on this machine; None if they can.
        language: of answers that are programs.
    """

    name: str
    keys: Sequence[str]
    asked: Mapping[str, Asked]
    max_new_tokens: int
    score: Callable[[list[list[str]], Path, list[list[str]]], Scored] | None
    skipped: str | None = None
    language: str | None = None
