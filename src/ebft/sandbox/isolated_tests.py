"""Deciding whether a program passes its tests, in such a way that the program has no say in it.

For Python, JavaScript, TypeScript and PHP the tests and the program run in two processes, each in a sandbox of its own,
joined by two pipes (`inside/`). The program sees the arguments of each call and nothing else. What it returns crosses
the border as plain data; the other side compares, and alone reports the outcome to us.

For compiled languages see `compiled.py`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from ebft.sandbox.isolation import INSIDE, INSIDE_MOUNT, Limits, Sandbox, Started
from ebft.sandbox.monitor import Ending, watch

PASSED, FAILED, TIMEOUT, ERROR, SKIPPED = "passed", "failed", "timeout", "error", "skipped"
STATUSES = (PASSED, FAILED, TIMEOUT, ERROR, SKIPPED)
PACKAGES = ("numpy",)  # of the standard library all, of other packages these, where they are installed


@dataclass(frozen=True)
class Outcome:
    """What became of one program: one of STATUSES, and a short line that says why."""

    status: str
    message: str = ""

    @property
    def passed(self) -> bool:
        return self.status == PASSED


@dataclass(frozen=True)
class Side:
    """One process at the border: a command that is followed by the descriptors to read and to write."""

    command: tuple[str, ...]
    job: dict[str, Any]
    folders: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()


def across_the_border(sandbox: Sandbox, tests: Side, program: Side, limits: Limits) -> Outcome:
    """Runs the tests against the program. Only what the process with the tests writes decides."""
    sandbox.check()
    to_program, from_tests = os.pipe()
    to_tests, from_program = os.pipe()
    result, report = os.pipe()
    opened = [to_program, from_tests, to_tests, from_program, result, report]
    running: list[Started] = []
    with tempfile.TemporaryDirectory(prefix="ebft-") if sandbox.unsafe else nullcontext() as folder:
        try:
            running.append(_start(sandbox, program, limits, to_program, from_program, None, folder))
            running.append(_start(sandbox, tests, limits, to_tests, from_tests, report, folder))
            for descriptor in (to_program, from_tests, to_tests, from_program, report):
                os.close(descriptor)
                opened.remove(descriptor)
            ending, [written] = watch(
                running[1].process, [running[0].process], [result], limits.seconds, limits.memory_mib * 2, 64
            )
        finally:
            for started in running:
                started.end()
            for descriptor in opened:
                os.close(descriptor)
    return _outcome(ending, written, limits)


def _start(
    sandbox: Sandbox, side: Side, limits: Limits, read: int, write: int, report: int | None, folder: str | None
) -> Started:
    with tempfile.TemporaryFile() as job:
        job.write(json.dumps(side.job).encode("ascii"))
        job.seek(0)
        command = [*side.command, str(read), str(write)]
        return sandbox.start(
            command,
            limits,
            folders=side.folders,
            environment=dict(side.environment),
            pass_fds=(read, write),
            folder=folder,
            stdin=job,
            stdout=subprocess.DEVNULL if report is None else report,
        )


def _outcome(ending: str, written: bytes, limits: Limits) -> Outcome:
    if ending == Ending.TIMEOUT:
        return Outcome(TIMEOUT, f"not finished after {limits.seconds:g} s")
    if ending == Ending.MEMORY:
        return Outcome(FAILED, f"held more than {limits.memory_mib} MiB of memory")
    try:
        result = json.loads(written)
        status, message = result["status"], result["message"]
    except (ValueError, KeyError, TypeError):
        return Outcome(ERROR, "the process that runs the tests ended without a result")
    if status not in STATUSES or not isinstance(message, str):
        return Outcome(ERROR, "the process that runs the tests gave no result")
    return Outcome(status, one_line(message))


def one_line(message: str, longest: int = 300) -> str:
    """Printable, on one line, short: messages are partly written by the programs."""
    kept = " ".join("".join(c if c.isprintable() else " " for c in message[: 4 * longest]).split())
    return kept if len(kept) <= longest else kept[: longest - 1] + "…"


@dataclass(frozen=True)
class PythonTests:
    """Tests of a Python program.

    Args:
        variants: readings of the model's answer, best first, each a list of sources run one after the other.
        tests: source of the tests; `setup` runs before.
        names: what the tests call; `classes` are those of which the tests make objects.
        modules: of the standard library, that the tests use without importing them.
        prompt: source whose definitions the tests may use, as the problem gives them.
        check: hand the program's function of this name to the tests' function `check`.
    """

    variants: tuple[tuple[str, ...], ...]
    tests: str
    setup: str = ""
    names: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    prompt: str = ""
    check: str = ""


def run_python(sandbox: Sandbox, tests: PythonTests, limits: Limits) -> Outcome:
    interpreter, folders, packages = _python_places()
    scripts = str(INSIDE) if sandbox.unsafe else INSIDE_MOUNT
    start = (interpreter, "-I", "-S", "-B", "-X", "utf8")
    # numpy's threads each want address space, and would only wait for each other.
    environment = (("OPENBLAS_NUM_THREADS", "1"), ("OMP_NUM_THREADS", "1"))
    program = {"variants": tests.variants, "names": [*tests.names, *tests.classes], "packages": packages}
    driver = {
        "prompt": tests.prompt,
        "setup": tests.setup,
        "tests": tests.tests,
        "names": tests.names,
        "classes": tests.classes,
        "modules": tests.modules,
        "check": tests.check,
        "packages": packages,
    }
    return across_the_border(
        sandbox,
        Side((*start, f"{scripts}/driver.py"), driver, folders, environment),
        Side((*start, f"{scripts}/candidate.py"), program, folders, environment),
        replace(limits, disk_mib=max(limits.disk_mib, 1)),
    )


@cache
def _python_places() -> tuple[str, tuple[str, ...], list[str]]:
    """The interpreter, the folders it needs besides /usr, and where further packages are to be found."""
    interpreter = os.path.realpath(sys.executable)
    folders = [] if sys.base_prefix.startswith("/usr") else [sys.base_prefix]
    places: list[str] = []
    for package in PACKAGES:
        found = importlib.util.find_spec(package)
        if found is None or found.origin is None:
            continue
        home = Path(found.origin).parent
        places.append(str(home.parent))
        beside = [path for path in (home, home.parent / f"{package}.libs") if path.is_dir()]
        folders += [str(path) for path in beside if not str(path).startswith((f"{sys.base_prefix}/", "/usr/"))]
    return interpreter, tuple(folders), places
