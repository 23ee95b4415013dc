"""HumanEval, functions to complete, and MBPP, programs from a description and tests."""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

from ebft.errors import DataError, kind_of
from ebft.problems.answers import python_variants
from ebft.problems.problem import Problem, Record
from ebft.sandbox.box import Sandbox
from ebft.sandbox.bubblewrap import Limits
from ebft.sandbox.python_tests import Outcome, PythonTests, run_python

# The chat prompt of EvalPlus, by which models are published.
REQUEST = (
    "Please provide a self-contained Python script that solves the following problem in a markdown code block:\n"
    "```\n{}\n```\n"
)
ANSWER_START = (
    "Below is a Python script with a self-contained function that solves the problem and passes corresponding tests:\n"
    "```python\n"
)
CHAT_STOPS = ("\n```", "\nif __name__", "\ndef main(", "\nprint(")


class PythonProblem(Problem):
    RAW_STOPS: ClassVar[tuple[str, ...]]

    @property
    def raw_prompt(self) -> str:
        raise NotImplementedError

    def prompt(self, style: str = "raw") -> str:
        return self.raw_prompt if style == "raw" else REQUEST.format(self.raw_prompt.strip())

    def stop_strings(self, style: str = "raw") -> tuple[str, ...]:
        return self.RAW_STOPS if style == "raw" else CHAT_STOPS

    @property
    def answer_start(self) -> str:
        return ANSWER_START


@dataclass(frozen=True)
class HumanEvalProblem(PythonProblem):
    head: str = ""
    entry_point: str = ""
    tests: str = ""
    reference: str = ""
    classes: tuple[str, ...] = ()

    RAW_STOPS = ("\nclass ", "\ndef ", "\n#", "\nif ", "\nprint(", "\n```")

    @property
    def raw_prompt(self) -> str:
        return self.head

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


@dataclass(frozen=True)
class MBPPProblem(PythonProblem):
    text: str = ""
    tests: tuple[str, ...] = ()
    setup: str = ""
    reference: str = ""
    names: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()

    RAW_STOPS = ("\nclass Test", "\nassert ", '\n"""', "\nprint(", "\nif __name__", "\n```", "\n[DONE]")

    @property
    def raw_prompt(self) -> str:
        return f'"""\n{self.text.strip()}\n{self.tests[0].strip()}\n"""\n'

    def interpretations(self, answer: str) -> Sequence[Sequence[str]]:
        return python_variants("", answer, self.names[0] if self.names else None)

    def run(self, interpretations: Sequence[Sequence[str]], sandbox: Sandbox, limits: Limits) -> Outcome:
        tests = PythonTests(
            interpretations,
            "\n".join(self.tests),
            setup=self.setup,
            names=self.names,
            classes=self.classes,
            modules=self.modules,
            sanitize=True,
        )
        return run_python(sandbox, tests, limits)


def mbpp_problem(record: Record) -> MBPPProblem:
    if "task_id" not in record.row:
        record.text("task_id")
    task_id = record.row["task_id"]
    if isinstance(task_id, bool) or not isinstance(task_id, (int, str)):
        raise DataError(f"{record.where}: the field 'task_id' is {kind_of(task_id)}, not a number or string")
    text = record.text("text" if "text" in record.row or "prompt" not in record.row else "prompt")
    tests = record.texts("test_list", required=True)
    if not tests:
        raise DataError(f"{record.where}: test_list is empty; without tests everything would pass")
    setup = "\n".join([*record.texts("test_imports"), record.text("test_setup_code", "")])
    reference = record.text("code", "")
    source = setup.replace("\r\n", "\n") + "\n" + "\n".join(tests)
    check_python(source, "test_list", record)
    check_python(reference, "code", record)
    functions, classes = definitions(reference, ast.FunctionDef), definitions(reference, ast.ClassDef)
    names = _names_tests_use(source, {*functions, *classes})
    modules = tuple(n for n in names if n in sys.stdlib_module_names and n not in functions)
    called = tuple(n for n in names if n not in modules and n not in classes)
    used = tuple(n for n in names if n in classes)
    return MBPPProblem(str(task_id), "python", text, tuple(tests), setup, reference, called, used, modules)


def _names_tests_use(tests: str, defined_by_reference: set[str]) -> list[str]:
    """What the tests use without defining it: names of the reference solution, and those that nobody knows."""
    used: set[str] = set()
    bound: set[str] = set()
    called: set[str] = set()
    for node in ast.walk(ast.parse(tests)):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            bound |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            called.add(node.func.id)
    names = ((used - set(dir(builtins))) | (used & defined_by_reference)) - bound
    if not names and not defined_by_reference:
        names = called - bound  # a function that is named like a builtin, and no reference to tell
    return sorted(names)


# ---- Python sources of a dataset: parsed, never run ----------------------------------------------------------------

# What the parser raises: of a text that is nested too deeply, the last two.
NOT_PYTHON = (SyntaxError, ValueError, RecursionError, MemoryError)


def check_python(source: str, name: str, record: Record) -> None:
    try:
        ast.parse(source)
    except NOT_PYTHON as error:
        reason = "nested too deeply" if isinstance(error, (RecursionError, MemoryError)) else error
        raise DataError(f"{record.where}: the field {name!r} is not valid Python ({reason})") from None


def definitions(source: str, kind: type[ast.FunctionDef] | type[ast.ClassDef]) -> tuple[str, ...]:
    return tuple(node.name for node in ast.parse(source).body if isinstance(node, kind))
