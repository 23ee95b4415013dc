"""What a task asks a model: prompts with their keys, and how the completions are scored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Scored = dict[str, Any]  # {"metrics": {name: {"value", "standard_error", "count"}}, and further details}


@dataclass(frozen=True)
class ProblemSet:
    """
    Args:
        name: the start of the names of its files.
        keys: a key for each problem, unique in the set.
        prompts: a prompt for each problem.
        stop: strings that end a completion.
        max_new_tokens: the default for its completions.
        score: from the completions of each problem, the file they are in and how each ended to metrics; None: later,
            by `ebft score`.
        skipped: why its answers cannot be scored on this machine; None if they can.
    """

    name: str
    keys: Sequence[str]
    prompts: Sequence[str]
    stop: tuple[str, ...]
    max_new_tokens: int
    score: Callable[[list[list[str]], Path, list[list[str]]], Scored] | None
    skipped: str | None = None

    def prompt_format(self, style: str) -> dict[str, str]:
        """What else than settings and prompts the completions depend on, to be kept apart from those of old versions.

        Whitespace at the end of raw prompts used to be tokenized with them.
        """
        if style == "raw" and any(prompt != prompt.rstrip() for prompt in self.prompts):
            return {"trailing_whitespace": "written by the model"}
        return {}
