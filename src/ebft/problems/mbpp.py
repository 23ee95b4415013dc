"""MBPP: Python programs from a description and tests. Reads the full and the sanitized set."""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from ebft.errors import DataError, kind_of
from ebft.problems.answers import python_variants
from ebft.problems.problem import PYTHON_ANSWER_START, PYTHON_CHAT_STOPS, PYTHON_REQUEST, Problem
from ebft.problems.python_source import check_python, definitions
from ebft.problems.records import Record
from ebft.sandbox.box import Sandbox
from ebft.sandbox.bubblewrap import Limits
from ebft.sandbox.python_tests import Outcome, PythonTests, run_python


@dataclass(frozen=True)
class MBPPProblem(Problem):
    text: str = ""
    tests: tuple[str, ...] = ()
    setup: str = ""
    reference: str = ""
    names: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()

    def prompt(self, style: str = "raw") -> str:
        raw = f'"""\n{self.text.strip()}\n{self.tests[0].strip()}\n"""\n'
        return raw if style == "raw" else PYTHON_REQUEST.format(raw.strip())

    def stop_strings(self, style: str = "raw") -> tuple[str, ...]:
        raw = ("\nclass Test", "\nassert ", '\n"""', "\nprint(", "\nif __name__", "\n```", "\n[DONE]")
        return raw if style == "raw" else PYTHON_CHAT_STOPS

    @property
    def answer_start(self) -> str:
        return PYTHON_ANSWER_START

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
