"""Rewards of `ebft rlvr`: functions of an answer and the dataset's row it answers.

- `unit_tests`: 1 if all tests of the row's problem pass, else 0; in the sandbox, several at a time, each answer once.
- `bleu`: sentence BLEU against the row's reference, from 0 to 1.
- `module:function`: your own, called as `function(completion, row)`, which returns a number.

Whatever goes wrong with an answer (tests that hang, a function that raises or returns no number) costs this answer a
zero. It is counted, and the counts are logged with the metrics; training continues.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import json
import logging
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ebft.config.training import RLVRSettings
from ebft.data.row_format import Row
from ebft.errors import ConfigError, DataError, SandboxError, nearest
from ebft.problems.problem import Attempt, Problem, Record, run_many
from ebft.problems.python_problems import humaneval_problem, mbpp_problem
from ebft.problems.translation import one_line
from ebft.runtime.machine import available_cores
from ebft.sandbox.box import Sandbox
from ebft.sandbox.bubblewrap import Limits
from ebft.sandbox.python_tests import ERROR, TIMEOUT

logger = logging.getLogger(__name__)

COUNTS = ("raised", "timeouts", "sandbox_errors", "programs", "from_cache")


class RewardFunction:
    """Scores answers to rows of the dataset, by `function` one at a time."""

    function: Callable[[str, Row], float]

    def __init__(self, name: str, counts: Counter[str]) -> None:
        self.name, self.counts = name, counts
        self._told = False

    def unusable(self, row: Row, where: str) -> str | None:
        """Why answers to this row cannot be scored; None if they can."""
        return None

    def score(self, texts: Sequence[str], rows: Sequence[Row]) -> list[float]:
        scores = []
        for text, row in zip(texts, rows, strict=True):
            try:
                score = float(self.function(text, dict(row)))
                if not math.isfinite(score):
                    raise ValueError(f"it returned {score}")
                scores.append(score)
            except (Exception, SystemExit) as error:  # a script's sys.exit() must not end the run either
                scores.append(self.failed(error))
        return scores

    def failed(self, error: BaseException) -> float:
        self.counts["raised"] += 1
        if not self._told:  # the first one in words, the others as a number
            self._told = True
            message = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            logger.warning(f"the reward {self.name} raised {message}; such answers get 0 and are counted")
        return 0.0


class UnitTests(RewardFunction):
    def __init__(self, counts: Counter[str], settings: RLVRSettings, columns: dict[str, str]) -> None:
        super().__init__("unit_tests", counts)
        self.tests_column, self.columns = settings.tests_column, columns
        self.limits = Limits(seconds=settings.reward_timeout)
        self.sandbox = Sandbox(unsafe=settings.unsafe_exec, limits=self.limits)
        cores = available_cores()
        self.workers = settings.reward_workers or max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE") or 1))
        self._passed: dict[str, bool] = {}
        try:
            self.sandbox.check()  # now, not after the first answers are drawn
        except SandboxError as error:
            raise ConfigError(str(error).replace("--unsafe-exec", "unsafe_exec=true")) from None

    def unusable(self, row: Row, where: str) -> str | None:
        try:
            self._problem(row, where)
        except DataError as error:
            return str(error)
        return None

    def _problem(self, row: Row, where: str = "a row") -> Problem:
        """As HumanEval's where the row has an entry point: the answer continues the prompt. Else as MBPP's."""
        tests, prompt = row.get(self.tests_column), row.get(self.columns["prompt"])
        text = prompt if isinstance(prompt, str) else ""
        if isinstance(row.get("entry_point"), str) and isinstance(tests, str):
            fields = {"task_id": where, "prompt": text, "entry_point": row["entry_point"], "test": tests}
            return humaneval_problem(Record(where, fields))
        if tests is None:
            there = f"it has {', '.join(map(repr, row)) or 'none'}. Name yours with tests_column"
            raise DataError(f"{where} has no column {self.tests_column!r} with unit tests; {there}")
        fields = {name: row[name] for name in ("test_imports", "test_setup_code") if row.get(name) is not None}
        reference = _python_or_nothing(row.get(self.columns["completion"]))
        fields |= {"task_id": where, "text": text, "test_list": as_tests(tests), "code": reference}
        return mbpp_problem(Record(where, fields))

    def score(self, texts: Sequence[str], rows: Sequence[Row]) -> list[float]:
        keys, todo = list[str](), dict[str, Attempt]()
        for text, row in zip(texts, rows, strict=True):
            problem = self._problem(row)  # `unusable` rows are left out
            key = hashlib.sha256(f"{problem!r}\0{text}".encode("utf-8", "surrogatepass")).hexdigest()
            keys.append(key)
            if key in self._passed or key in todo:
                self.counts["from_cache"] += 1
            else:
                todo[key] = Attempt(problem, text, key)
        left = len(todo)
        try:
            for attempt, outcome in run_many(todo.values(), self.sandbox, self.limits, self.workers):
                left -= 1
                self.counts["programs"] += 1
                self.counts["timeouts"] += outcome.status == TIMEOUT
                self.counts["sandbox_errors"] += outcome.status == ERROR
                if outcome.status != ERROR:  # which is nobody's fault, and perhaps otherwise the next time
                    self._passed[attempt.tag] = outcome.passed
        except SandboxError as error:  # nothing runs any more: the answers that are left get 0
            self.failed(error)
            self.counts["sandbox_errors"] += left
        return [float(self._passed.get(key, False)) for key in keys]


class Bleu(RewardFunction):
    def __init__(self, counts: Counter[str], settings: RLVRSettings, columns: dict[str, str]) -> None:
        super().__init__("bleu", counts)
        from sacrebleu.metrics import BLEU

        self.column = settings.reference_column or columns["completion"]
        # As in evaluation: a short sentence without any 4-gram would otherwise score next to nothing.
        self.metric = BLEU(effective_order=True)

    def unusable(self, row: Row, where: str) -> str | None:
        if isinstance(row.get(self.column), str) and row[self.column].strip():
            return None
        return f"{where} has no text in the column {self.column!r}, which bleu compares with; set reference_column"

    def function(self, text: str, row: Row) -> float:
        return self.metric.sentence_score(one_line(text), [one_line(row[self.column])]).score / 100


def import_function(name: str) -> Callable[[str, Row], float]:
    """`module:function`, from the working folder too."""
    module, _, function = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module), function)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"rewards={name!r} cannot be imported: {type(error).__name__}: {error}") from None
    if not callable(found):
        raise ConfigError(f"rewards={name!r} is of the type {type(found).__name__}, not a function")
    return found


def make_rewards(settings: RLVRSettings, columns: dict[str, str], counts: Counter[str]) -> list[RewardFunction]:
    known, rewards = {"unit_tests": UnitTests, "bleu": Bleu}, list[RewardFunction]()
    for name in settings.rewards:
        if name in known:
            rewards.append(known[name](counts, settings, columns))
        elif ":" in name:
            rewards.append(RewardFunction(name.replace(":", "."), counts))
            rewards[-1].function = import_function(name)
        else:
            raise ConfigError(f"rewards={name!r} is not unit_tests, bleu or module:function{nearest(name, known)}")
    return rewards


def as_tests(value: Any) -> list[str]:
    """A list of texts, also written as JSON or Python in one text; any other text is one test."""
    if isinstance(value, str):
        parsed: Any = None
        for parse in (json.loads, ast.literal_eval) if value.lstrip().startswith("[") else ():
            with suppress(ValueError, SyntaxError):
                parsed = parsed or parse(value.strip())
        value = parsed if isinstance(parsed, list) else [value]
    if not isinstance(value, list):
        raise DataError(f"unit tests are of the type {type(value).__name__}, not a list of texts or a text")
    return [test for test in value if isinstance(test, str) and test.strip()]


def _python_or_nothing(text: Any) -> str:
    """The reference tells functions from classes where it is Python; answers in prose or code blocks are not."""
    if not isinstance(text, str):
        return ""
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    return text
