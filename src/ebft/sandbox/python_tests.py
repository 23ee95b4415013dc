"""Tests of Python programs, decided in such a way that the program has no say in it.

The tests and the program run in two processes, each in a sandbox of its own, joined by two pipes (`inside/driver.py`
and `inside/candidate.py`). The program sees the arguments of each call and nothing else. What it returns crosses the
process boundary as plain data; the process with the tests compares, and alone reports the outcome to us.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from ebft.sandbox.box import Ending, Sandbox
from ebft.sandbox.bubblewrap import Command, Limits

PASSED, FAILED, TIMEOUT, ERROR = STATUSES = ("passed", "failed", "timeout", "error")


@dataclass(frozen=True)
class Outcome:
    """The result of one program: one of STATUSES, and a short line that says why."""

    status: str
    message: str = ""

    @property
    def passed(self) -> bool:
        return self.status == PASSED


@dataclass(frozen=True)
class PythonTests:
    """Tests of a Python program."""

    variants: Sequence[Sequence[str]]  # interpretations of the answer, best first, each a list of sources run in order
    tests: str  # source
    setup: str = ""  # runs before them
    names: tuple[str, ...] = ()  # what the tests call
    classes: tuple[str, ...] = ()  # of which the tests make objects
    modules: tuple[str, ...] = ()  # of the standard library, that the tests use without importing them
    prompt: str = ""  # source whose definitions the tests may use, as the problem gives them
    check: str = ""  # hand the program's function of this name to the tests' function `check`
    # Of an answer that does not compile take the longest part that does, and of what follows the functions that the
    # tests call only what they need.
    sanitize: bool = False


def run_python(sandbox: Sandbox, tests: PythonTests, limits: Limits) -> Outcome:
    """Runs the tests against the program. Only what the process with the tests writes decides."""
    sandbox.check()
    folders, packages = _numpy()
    (to_program, from_tests), (to_tests, from_program) = os.pipe(), os.pipe()

    def command(module: str, job: dict[str, object], *pipes: int) -> Command:
        stdin = json.dumps(job | {"packages": packages}).encode("ascii")
        # numpy's threads each want address space, and would only wait for each other.
        variables = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        return Command((), limits, {}, stdin, folders, variables, pipes=pipes, module=module)

    program = {"variants": tests.variants, "names": [*tests.names, *tests.classes], "sanitize": tests.sanitize}
    done = sandbox.run(
        command("candidate", program, to_program, from_program),
        command("driver", vars(tests), to_tests, from_tests),
        limits=replace(limits, memory_mib=2 * limits.memory_mib, output_kib=64),
    )
    if (exceeded := limit_exceeded(done.ending, limits)) is not None:
        return exceeded
    if not done.stdout:
        return Outcome(ERROR, "the process that runs the tests ended without a result")
    found = json.loads(done.stdout)
    return Outcome(found["status"], one_line(found["message"]))


def limit_exceeded(ending: Ending, limits: Limits) -> Outcome | None:
    return {
        "timeout": Outcome(TIMEOUT, f"not finished after {limits.seconds:g} s"),
        "memory": Outcome(FAILED, f"held more than {limits.memory_mib} MiB of memory"),
        "output": Outcome(FAILED, f"wrote more than {limits.output_kib} KiB"),
    }.get(ending)


def one_line(message: str, longest: int = 300) -> str:
    """Printable, on one line, short: messages are partly written by the programs."""
    kept = " ".join("".join(c if c.isprintable() else " " for c in message[: 4 * longest]).split())
    return kept if len(kept) <= longest else kept[: longest - 1] + "…"


@cache
def _numpy() -> tuple[tuple[str, ...], list[str]]:
    """Its folders, unless they are visible anyway, and where to look for it: of other packages than the standard
    library, programs have this one, where it is installed."""
    found = importlib.util.find_spec("numpy")
    if found is None or found.origin is None:
        return (), []
    home = Path(found.origin).parent
    beside = [str(folder) for folder in (home, home.with_name("numpy.libs")) if folder.is_dir()]
    return tuple(path for path in beside if not path.startswith((f"{sys.base_prefix}/", "/usr/"))), [str(home.parent)]
