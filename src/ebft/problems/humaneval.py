"""HumanEval: functions to complete, in Python."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from ebft.errors import DataError
from ebft.problems.answers import python_variants
from ebft.problems.problem import Problem
from ebft.problems.python_source import NOT_PYTHON, check_python, definitions
from ebft.problems.records import Record
from ebft.sandbox.command import Limits
from ebft.sandbox.isolated_tests import Outcome
from ebft.sandbox.isolation import Sandbox
from ebft.sandbox.python_tests import PythonTests, run_python


@dataclass(frozen=True)
class HumanEvalProblem(Problem):
    head: str = ""
    entry_point: str = ""
    tests: str = ""
    reference: str = ""
    classes: tuple[str, ...] = ()

    def prompt(self, style: str = "raw") -> str:
        if style == "raw":
            return self.head
        return (
            "Complete the following Python function. Answer with the whole function, its imports included, in one "
            f"```python code block.\n\n```python\n{self.head.strip()}\n```"
        )

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return ("\nclass ", "\ndef ", "\n#", "\nif ", "\nprint(", "\n```")

    def interpretations(self, answer: str) -> Sequence[Sequence[str]]:
        return python_variants(self.head, answer, self.entry_point)

    def run(self, interpretations: Sequence[Sequence[str]], sandbox: Sandbox, limits: Limits) -> Outcome:
        tests = PythonTests(
            interpretations,
            self.tests,
            names=() if self.entry_point in self.classes else (self.entry_point,),
            classes=self.classes,
            prompt=self.head,
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
