"""A problem whose answers are programs, running answers to it, and the rows that problems and samples are made of.

`python_problems.py` and `multipl_e.py` have the problems of each benchmark, `catalog.py` reads them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any, NamedTuple

from ebft.data.row_format import Row
from ebft.data.rows import read_rows
from ebft.errors import DataError, SandboxError
from ebft.problems.answers import LONGEST
from ebft.runtime.machine import available_cores
from ebft.sandbox.box import Sandbox
from ebft.sandbox.bubblewrap import Limits
from ebft.sandbox.python_tests import ERROR, FAILED, Outcome

_SANDBOX = Sandbox()  # of those who name none


class Question(NamedTuple):
    prompt: str
    stop: tuple[str, ...] = ()  # where the generation of an answer may stop
    answer_start: str = ""  # what the answer begins with, which is given to the model


@dataclass(frozen=True)
class Problem:
    """One problem. Subclasses say how to check an answer."""

    task_id: str
    language: str
    raw: Question  # text for a base model to continue
    chat: Question  # the message of a user to a chat model

    @abstractmethod
    def run(self, answer: str, sandbox: Sandbox, limits: Limits) -> Outcome: ...

    def unavailable(self) -> str | None:
        """Why answers cannot be run on this machine; None if they can."""
        return None


def run_tests(problem: Problem, answer: str, sandbox: Sandbox = _SANDBOX, limits: Limits | None = None) -> Outcome:
    """The outcome of one answer to a problem. Raises SandboxError if nothing can be run here."""
    sandbox.check()
    if len(answer) > LONGEST:
        return Outcome(FAILED, f"the answer has {len(answer)} characters; more than {LONGEST} are not run")
    try:
        return problem.run(answer, sandbox, limits or sandbox.limits)
    except SandboxError:
        raise
    except Exception as error:  # one answer must not end the scoring of the others
        return Outcome(ERROR, f"{type(error).__name__}: {error}"[:300])


@dataclass
class Attempt:
    """An answer to a problem, and a tag of the caller's."""

    problem: Problem
    answer: str
    tag: Any = None


def run_many(
    attempts: Iterable[Attempt], sandbox: Sandbox = _SANDBOX, limits: Limits | None = None, workers: int | None = None
) -> Iterator[tuple[Attempt, Outcome]]:
    """Outcomes as they come, `workers` programs at a time."""
    sandbox = Sandbox(sandbox.unsafe, sandbox.limits)  # of its own, to be stopped without stopping others
    sandbox.check()
    with ThreadPoolExecutor(workers or available_cores()) as pool:
        try:
            running = {pool.submit(run_tests, one.problem, one.answer, sandbox, limits): one for one in attempts}
            for done in as_completed(running):
                yield running.pop(done), done.result()
        finally:  # also when the caller, or Ctrl-C, ends this early
            pool.shutdown(wait=False, cancel_futures=True)
            sandbox.stop()


@dataclass(frozen=True)
class Record:
    """One row and its place in the source, for error messages."""

    where: str
    row: Row

    def field(self, name: str, kind: type) -> Any:
        """What must be there, of this type, and may not be an empty list."""
        value = self.row.get(name)
        if not isinstance(value, kind) or value == []:
            has = ", ".join(map(repr, self.row)) or "none"
            said = f" (a {kind.__name__}), but {type(value).__name__}" if value is not None else ""
            raise DataError(f"{self.where} has no field {name!r}{said}; it has {has}")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        return default if default is not None and name not in self.row else self.field(name, str)

    def texts(self, name: str) -> list[str]:
        """A list of strings; none if there is no such field."""
        items = self.field(name, list) if self.row.get(name) else []
        return [Record(self.where, {name: item}).text(name) for item in items]


def read_records(source: str, split: str = "test") -> Iterator[Record]:
    """The rows of anything that training reads: a file, a folder, a dataset of the hub (`name:configuration`)."""
    for number, row in enumerate(read_rows(source, split), 1):
        yield Record(f"{source}: row {number}", dict(row))
