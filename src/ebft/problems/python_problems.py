"""HumanEval, functions to complete, and MBPP, programs from a description and tests."""

from __future__ import annotations

import ast
import builtins
import re
import sys
from contextlib import suppress
from dataclasses import dataclass, replace

from ebft.errors import DataError, first_line
from ebft.problems.answers import python_variants
from ebft.problems.problem import Problem, Question, Record
from ebft.sandbox.box import Sandbox
from ebft.sandbox.bubblewrap import Limits
from ebft.sandbox.python_tests import Outcome, PythonTests, run_python

# The chat prompt of EvalPlus, by which models are published.
REQUEST = "Please provide a self-contained Python script that solves the following problem in a markdown code block:\n"
REQUEST += "```\n{}\n```\n"
ANSWER_START = "Below is a Python script with a self-contained function that solves the problem and passes "
ANSWER_START += "corresponding tests:\n```python\n"
CHAT_STOPS = ("\n```", "\nif __name__", "\ndef main(", "\nprint(", "\nassert ")  # all but the last are EvalPlus' too
HUMANEVAL_STOPS = ("\nclass ", "\ndef ", "\n#", "\nif ", "\nprint(", "\n```")
MBPP_STOPS = ("\nclass Test", "\nassert ", '\n"""', "\nprint(", "\nif __name__", "\n```", "\n[DONE]")
NOT_PYTHON = (SyntaxError, ValueError, RecursionError, MemoryError)  # the last two: nested too deeply


@dataclass(frozen=True)
class PythonProblem(Problem):
    tests: PythonTests  # all but the variants of an answer
    name: str | None  # of the function that an answer defines
    head: str  # of that function, which an answer may continue

    def run(self, answer: str, sandbox: Sandbox, limits: Limits) -> Outcome:
        variants = python_variants(self.head, answer, self.name)
        return run_python(sandbox, replace(self.tests, variants=variants), limits)


def _chat(prompt: str) -> Question:
    return Question(REQUEST.format(prompt.strip()), CHAT_STOPS, ANSWER_START)


def humaneval_problem(record: Record) -> PythonProblem:
    head, name, source = (record.text(field) for field in ("prompt", "entry_point", "test"))
    classes: tuple[str, ...] = ()
    with suppress(*NOT_PYTHON):  # of a prompt in prose
        classes = _definitions(ast.parse(head), ast.ClassDef)
    _parsed(source, "test", record)
    names = () if name in classes else (name,)
    check = name if re.search(r"^\s*(def check\b|check\s*=)", source, re.MULTILINE) else ""
    tests = PythonTests((), source, names=names, classes=classes, prompt=head, check=check, sanitize=True)
    raw = Question(head, HUMANEVAL_STOPS)
    return PythonProblem(record.text("task_id"), "python", raw, _chat(head), tests, name, head)


def mbpp_problem(record: Record) -> PythonProblem:
    text = record.text("text" if "text" in record.row or "prompt" not in record.row else "prompt")
    record.field("test_list", list)  # there is one at least: without tests everything would pass
    asserts = record.texts("test_list")
    setup = "\n".join([*record.texts("test_imports"), record.text("test_setup_code", "")])
    source = _parsed("\n".join([setup.replace("\r\n", "\n"), *asserts]), "test_list", record)
    solution = _parsed(record.text("code", ""), "code", record)  # it is never run
    functions, defined = _definitions(solution, ast.FunctionDef), _definitions(solution, ast.ClassDef)
    used = _names_tests_use(source, {*functions, *defined})
    modules = tuple(name for name in used if name in sys.stdlib_module_names and name not in functions)
    called = tuple(name for name in used if name not in modules and name not in defined)
    classes = tuple(name for name in used if name in defined)
    tests = PythonTests((), "\n".join(asserts), setup, called, classes, modules, sanitize=True)
    prompt = f'"""\n{text.strip()}\n{asserts[0].strip()}\n"""\n'
    name = called[0] if called else None
    task_id = str(record.field("task_id", object))
    return PythonProblem(task_id, "python", Question(prompt, MBPP_STOPS), _chat(prompt), tests, name, "")


def _names_tests_use(tests: ast.Module, defined_by_reference: set[str]) -> list[str]:
    """What the tests use without defining it: names of the reference solution, and those that nobody knows."""
    used: set[str] = set()
    bound: set[str] = set()
    called: set[str] = set()
    for node in ast.walk(tests):
        match node:
            case ast.Name(id, ctx):
                (used if isinstance(ctx, ast.Load) else bound).add(id)
            case ast.FunctionDef(name) | ast.ClassDef(name) | ast.arg(name):
                bound.add(name)
            case ast.Import(imported) | ast.ImportFrom(names=imported):
                bound |= {(alias.asname or alias.name).split(".")[0] for alias in imported}
            case ast.Call(ast.Name(id)):
                called.add(id)
    names = ((used - set(dir(builtins))) | (used & defined_by_reference)) - bound
    if not names and not defined_by_reference:
        names = called - bound  # a function that is named like a builtin, and no reference to tell
    return sorted(names)


def _parsed(source: str, name: str, record: Record) -> ast.Module:
    try:
        return ast.parse(source)
    except NOT_PYTHON as error:
        raise DataError(f"{record.where}: the field {name!r} is not valid Python ({first_line(error)})") from None


def _definitions(tree: ast.Module, kind: type[ast.FunctionDef] | type[ast.ClassDef]) -> tuple[str, ...]:
    return tuple(node.name for node in tree.body if isinstance(node, kind))
