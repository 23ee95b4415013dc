"""A problem whose answers are programs, running answers to it, and rows of problems and samples on disk.

`prompt` and `stop_strings` are for whoever generates answers; `run_tests` and `run_many` run them. `python_problems.py`
and `multipl_e.py` have the problems of each benchmark, `catalog.py` reads them.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ebft.data.rows import read_rows
from ebft.errors import DataError, SandboxError, kind_of, what_is_wrong
from ebft.problems import answers
from ebft.sandbox.box import Sandbox
from ebft.sandbox.bubblewrap import Limits
from ebft.sandbox.python_tests import ERROR, FAILED, Outcome


@dataclass(frozen=True)
class Problem:
    """One problem. Subclasses say how to ask for an answer and how to check one."""

    task_id: str
    language: str = "python"

    def prompt(self, style: str = "raw") -> str:
        """`raw`: text for a base model to continue. `chat`: the message of a user to a chat model."""
        raise NotImplementedError

    def stop_strings(self, style: str = "raw") -> tuple[str, ...]:
        """Where the generation of an answer may stop."""
        raise NotImplementedError

    @property
    def answer_start(self) -> str:
        """What the answer in a chat begins with, which is given to the model."""
        return ""

    def interpretations(self, answer: str) -> Sequence[Any]:
        """What an answer may mean as a program, best first."""
        raise NotImplementedError

    def run(self, interpretations: Sequence[Any], sandbox: Sandbox, limits: Limits) -> Outcome:
        raise NotImplementedError

    def unavailable(self) -> str | None:
        """Why answers cannot be run on this machine; None if they can."""
        return None


def run_tests(problem: Problem, answer: str, sandbox: Sandbox | None = None, limits: Limits | None = None) -> Outcome:
    """The outcome of one answer to a problem. Raises SandboxError if nothing can be run here."""
    sandbox = sandbox or _default_sandbox()
    sandbox.check()
    if len(answer) > answers.LONGEST:
        return Outcome(FAILED, f"the answer has {len(answer)} characters; more than {answers.LONGEST} are not run")
    try:
        return problem.run(problem.interpretations(answer), sandbox, limits or sandbox.limits)
    except SandboxError:
        raise
    except Exception as error:  # one answer must not end the scoring of the others
        return Outcome(ERROR, f"{type(error).__name__}: {error}"[:300])


@cache
def _default_sandbox() -> Sandbox:
    return Sandbox()


@dataclass
class Attempt:
    """An answer to a problem, and a tag of the caller's."""

    problem: Problem
    answer: str
    tag: Any = None


def run_many(
    attempts: Iterable[Attempt],
    sandbox: Sandbox | None = None,
    limits: Limits | None = None,
    workers: int | None = None,
) -> Iterator[tuple[Attempt, Outcome]]:
    """Outcomes as they come, `workers` programs at a time."""
    given = sandbox or _default_sandbox()
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


# ---- rows: JSONL (also gzipped) with line numbers in every error message, or a hub dataset ---------------------------


@dataclass(frozen=True)
class Record:
    """One row and its place in the source, for error messages."""

    where: str
    row: dict[str, Any]

    def text(self, name: str, default: str | None = None) -> str:
        """A field that must be a string."""
        value = self.row.get(name, default)
        if value is None:
            raise self._without(name)
        if not isinstance(value, str):
            raise DataError(f"{self.where}: the field {name!r} is {kind_of(value)}, not a string")
        return value

    def texts(self, name: str, required: bool = False) -> list[str]:
        """A field that must be a list of strings."""
        value = self.row.get(name)
        if value is None and not required:
            return []
        if value is None:
            raise self._without(name)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise DataError(f"{self.where}: the field {name!r} is not a list of strings")
        return value

    def _without(self, name: str) -> DataError:
        return DataError(f"{self.where} has no field {name!r}; it has {', '.join(map(repr, self.row)) or 'none'}")


def read_records(source: str, split: str = "test") -> Iterator[Record]:
    """The rows of a `.jsonl` or `.jsonl.gz` file, or of a hub dataset (`name` or `name:configuration`)."""
    path = Path(source).expanduser()
    if path.is_dir():
        raise DataError(f"{source} is a folder; give one JSONL file")
    if not path.is_file():
        # The hub's own rows have no line numbers. A name with a suffix is a file that is not there.
        for number, row in enumerate(read_rows(source, split), 1):
            yield Record(f"{source}: row {number}", dict(row))
        return
    found = False
    for number, line in _lines(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{source}: line {number} is not valid JSON ({what_is_wrong(error)})") from None
        except (RecursionError, ValueError) as error:
            raise DataError(f"{source}: line {number} cannot be read ({type(error).__name__})") from None
        if not isinstance(row, dict):
            raise DataError(f"{source}: line {number} is {kind_of(row)}, not an object with fields")
        found = True
        yield Record(f"{source}: line {number}", row)
    if not found:
        raise DataError(f"{source}: the file is empty")


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    number = 0
    with path.open("rb") as plain:
        zipped = plain.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path, "rb") if zipped else path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{path}: line {number} is not UTF-8 text") from None
    except (gzip.BadGzipFile, EOFError):
        raise DataError(f"{path}: the gzip file is damaged after line {number}") from None
