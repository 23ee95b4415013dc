"""HumanEval: functions to complete, in Python."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from ebft.errors import DataError
from ebft.problems.answers import python_variants
from ebft.problems.problem import PYTHON_ANSWER_START, PYTHON_CHAT_STOPS, PYTHON_REQUEST, Problem
from ebft.problems.python_source import NOT_PYTHON, check_python, definitions
from ebft.problems.records import Record
from ebft.sandbox.box import Sandbox
from ebft.sandbox.bubblewrap import Limits
from ebft.sandbox.python_tests import Outcome, PythonTests, run_python


@dataclass(frozen=True)
class HumanEvalProblem(Problem):
    head: str = ""
    entry_point: str = ""
    tests: str = ""
    reference: str = ""
    classes: tuple[str, ...] = ()

    def prompt(self, style: str = "raw") -> str:
        raw = self.head
        return raw if style == "raw" else PYTHON_REQUEST.format(raw.strip())

    def stop_strings(self, style: str = "raw") -> tuple[str, ...]:
        raw = ("\nclass ", "\ndef ", "\n#", "\nif ", "\nprint(", "\n```")
        return raw if style == "raw" else PYTHON_CHAT_STOPS

    @property
    def answer_start(self) -> str:
        return PYTHON_ANSWER_START

    def interpretations(self, answer: str) -> Sequence[Sequence[str]]:
        return python_variants(self.head, answer, self.entry_point)

    def run(self, interpretations: Sequence[Sequence[str]], sandbox: Sandbox, limits: Limits) -> Outcome:
        tests = PythonTests(
            interpretations,
            self.tests,
            names=() if self.entry_point in self.classes else (self.entry_point,),
            classes=self.classes,
            prompt=self.head,
            sanitize=True,
            check=self.entry_point if re.search(r"^\s*(def check\b|check\s*=)", self.tests, re.MULTILINE) else "",
        )
        return run_python(sandbox, tests, limits)


def humaneval_problem(record: Record) -> HumanEvalProblem:
    task_id = record.text("task_id")
    head, entry_point, tests = record.text("prompt"), record.text("entry_point"), record.text("test")
    if not entry_point.isidentifier():
        raise DataError(f"{record.where}: entry_point={entry_point!r} is not a name")
    classes: tuple[str, ...] = ()
    with suppress(*NOT_PYTHON):  # of a prompt in prose
        classes = definitions(head, ast.ClassDef)
    check_python(tests, "test", record)
    return HumanEvalProblem(task_id, "python", head, entry_point, tests, record.text("canonical_solution", ""), classes)
