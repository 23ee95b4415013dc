"""Problems whose answers are programs: HumanEval and MBPP here, MultiPL-E in `multipl_e.py`.

`load_problems` reads them, `prompt` and `stop_strings` are for whoever generates answers, `run_tests` and `run_many`
say what became of answers. `docs/code-evaluation.md` describes prompts and the reading of answers.
"""

from __future__ import annotations

import ast
import builtins
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ebft.errors import DataError
from ebft.problems import answers
from ebft.problems.records import Record, read_records
from ebft.sandbox.isolated_tests import ERROR, FAILED, Outcome, PythonTests, run_python
from ebft.sandbox.isolation import Limits, Sandbox, SandboxError

STYLES = ("raw", "instruct")
HUB_NAMES = {
    "humaneval": "openai/openai_humaneval",
    "mbpp": "google-research-datasets/mbpp:full",
    "multipl-e": "nuprl/MultiPL-E:humaneval-cpp",
}


@dataclass(frozen=True)
class Problem:
    """One problem. Subclasses say how to ask for an answer and how to check one."""

    task_id: str
    language: str = "python"

    def prompt(self, style: str = "raw") -> str:
        """`raw`: text for a base model to continue. `instruct`: the message of a user to a chat model."""
        raise NotImplementedError

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Where the generation of a raw answer may stop."""
        raise NotImplementedError

    def run(self, answer: str, sandbox: Sandbox, limits: Limits) -> Outcome:
        raise NotImplementedError

    def unavailable(self) -> str | None:
        """Why answers cannot be run on this machine; None if they can."""
        return None


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

    def run(self, answer: str, sandbox: Sandbox, limits: Limits) -> Outcome:
        tests = PythonTests(
            answers.python_variants(self.head, answer, self.entry_point),
            self.tests,
            names=() if self.entry_point in self.classes else (self.entry_point,),
            classes=self.classes,
            prompt=self.head,
            check=self.entry_point if re.search(r"^\s*(def check\b|check\s*=)", self.tests, re.MULTILINE) else "",
        )
        return run_python(sandbox, tests, limits)


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
        if style == "raw":
            return f'"""\n{self.text.strip()}\n{self.tests[0].strip()}\n"""\n'
        tests = "\n".join(test.strip() for test in self.tests)
        return (
            f"{self.text.strip()}\n\nYour code should pass these tests:\n\n```python\n{tests}\n```\n\n"
            "Answer with the code, its imports included and without the tests, in one ```python code block."
        )

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return ("\nclass Test", "\nassert ", '\n"""', "\nprint(", "\nif __name__", "\n```", "\n[DONE]")

    def run(self, answer: str, sandbox: Sandbox, limits: Limits) -> Outcome:
        tests = PythonTests(
            answers.python_variants("", answer, self.names[0] if self.names else None),
            "\n".join(self.tests),
            setup=self.setup,
            names=self.names,
            classes=self.classes,
            modules=self.modules,
        )
        return run_python(sandbox, tests, limits)


def humaneval_problem(record: Record) -> HumanEvalProblem:
    task_id = record.text("task_id")
    head, entry_point, tests = record.text("prompt"), record.text("entry_point"), record.text("test")
    if not entry_point.isidentifier():
        raise DataError(f"{record.where}: entry_point={entry_point!r} is not a name")
    classes: tuple[str, ...] = ()
    with suppress(SyntaxError, ValueError):  # of a prompt in prose
        classes = _definitions(head, ast.ClassDef)
    _must_compile(tests, "test", record)
    return HumanEvalProblem(task_id, "python", head, entry_point, tests, record.text("canonical_solution", ""), classes)


def mbpp_problem(record: Record) -> MBPPProblem:
    if "task_id" not in record.row:
        record.text("task_id")
    task_id = record.row["task_id"]
    if isinstance(task_id, bool) or not isinstance(task_id, (int, str)):
        raise DataError(f"{record.where}: the field 'task_id' is a {type(task_id).__name__}, not a number or string")
    text = record.text("text" if "text" in record.row or "prompt" not in record.row else "prompt")
    tests = record.texts("test_list", required=True)
    if not tests:
        raise DataError(f"{record.where}: test_list is empty; without tests everything would pass")
    setup = "\n".join([*record.texts("test_imports"), record.text("test_setup_code", "")])
    reference = record.text("code", "")
    source = setup.replace("\r\n", "\n") + "\n" + "\n".join(tests)
    _must_compile(source, "test_list", record)
    try:
        functions, classes = _definitions(reference, ast.FunctionDef), _definitions(reference, ast.ClassDef)
    except (SyntaxError, ValueError):
        raise DataError(f"{record.where}: the field 'code' is not valid Python") from None
    names = _names_of_the_program(source, {*functions, *classes})
    modules = tuple(n for n in names if n in sys.stdlib_module_names and n not in functions)
    called = tuple(n for n in names if n not in modules and n not in classes)
    used = tuple(n for n in names if n in classes)
    return MBPPProblem(str(task_id), "python", text, tuple(tests), setup, reference, called, used, modules)


def _must_compile(source: str, name: str, record: Record) -> None:
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise DataError(f"{record.where}: the field {name!r} is not valid Python ({error})") from None


def _definitions(source: str, kind: type[ast.FunctionDef] | type[ast.ClassDef]) -> tuple[str, ...]:
    return tuple(node.name for node in ast.parse(source).body if isinstance(node, kind))


def _names_of_the_program(tests: str, defined_by_reference: set[str]) -> list[str]:
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


def load_problems(task: str, source: str | None = None, split: str = "test") -> list[Problem]:
    """Problems of `humaneval`, `mbpp` or `multipl-e` from a JSONL file or a hub dataset."""
    from ebft.problems import multipl_e

    make: Callable[[Record], Problem] = {
        "humaneval": humaneval_problem,
        "mbpp": mbpp_problem,
        "multipl-e": multipl_e.problem,
    }[task]
    problems: list[Problem] = []
    seen: dict[tuple[str, str], str] = {}
    for record in read_records(source or HUB_NAMES[task], split):
        problem = make(record)
        key = (problem.task_id, problem.language)
        if key in seen:
            raise DataError(f"{record.where}: the task {problem.task_id!r} is already in {seen[key]}")
        seen[key] = record.where
        problems.append(problem)
    return problems


def run_tests(problem: Problem, answer: str, sandbox: Sandbox | None = None, limits: Limits | None = None) -> Outcome:
    """What becomes of one answer to a problem. Raises SandboxError if nothing can be run here."""
    sandbox = sandbox or _default()
    sandbox.check()
    if len(answer) > answers.LONGEST:
        return Outcome(FAILED, f"the answer has {len(answer)} characters; more than {answers.LONGEST} are not run")
    try:
        return problem.run(answer, sandbox, limits or sandbox.limits)
    except SandboxError:
        raise
    except Exception as error:  # one answer must not end the scoring of the others
        return Outcome(ERROR, f"{type(error).__name__}: {error}"[:300])


_shared: list[Sandbox] = []


def _default() -> Sandbox:
    if not _shared:
        _shared.append(Sandbox())
    return _shared[0]


@dataclass
class Attempt:
    """An answer to a problem, and a tag of the caller's."""

    problem: Problem
    answer: str
    tag: Any = field(default=None)


def run_many(
    attempts: Iterable[Attempt],
    sandbox: Sandbox | None = None,
    limits: Limits | None = None,
    workers: int | None = None,
) -> Iterator[tuple[Attempt, Outcome]]:
    """Outcomes as they come, `workers` programs at a time."""
    given = sandbox or _default()
    sandbox = Sandbox(given.unsafe, given.limits)  # of its own, to be stopped without stopping others
    sandbox.check()
    workers = workers or os.cpu_count() or 1
    waiting = iter(attempts)
    running: dict[Future[Outcome], Attempt] = {}
    with ThreadPoolExecutor(workers) as pool:
        try:
            while True:
                while len(running) < 2 * workers and (attempt := next(waiting, None)) is not None:
                    running[pool.submit(run_tests, attempt.problem, attempt.answer, sandbox, limits)] = attempt
                if not running:
                    return
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    yield running.pop(done), done.result()
        finally:  # also when the caller, or Ctrl-C, ends this early
            pool.shutdown(wait=False, cancel_futures=True)
            sandbox.stop()
