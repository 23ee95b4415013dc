"""What the tests of code evaluation share: whether a sandbox is there, a small problem, and processes by name."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ebft.problems.problem import Record
from ebft.problems.python_problems import humaneval_problem
from ebft.sandbox.box import Sandbox, SandboxError
from ebft.sandbox.bubblewrap import Limits
from ebft.sandbox.other_languages import LANGUAGES
from ebft.sandbox.python_tests import Outcome
from tests.sandbox.attacks.python import HEAD, TESTS

SMALL = Limits(seconds=1.5, memory_mib=256, processes=16, disk_mib=16, output_kib=64)
ADD = humaneval_problem(Record("own", {"task_id": "Own/0", "prompt": HEAD, "entry_point": "add", "test": TESTS}))


@cache
def why_no_sandbox() -> str | None:
    try:
        Sandbox().check()
    except SandboxError as error:
        return str(error)
    return None


needs_sandbox = pytest.mark.skipif(why_no_sandbox() is not None, reason=why_no_sandbox() or "")


def needs_language(name: str) -> pytest.MarkDecorator:
    missing = LANGUAGES[name].missing()
    return pytest.mark.skipif(missing is not None, reason=missing or "")


Background = dict[str, "Future[tuple[Outcome, float]]"]


def in_background(request: pytest.FixtureRequest, run: Callable[[dict[str, Any]], Outcome]) -> Iterator[Background]:
    """Runs what the chosen tests of a module will look at, two at a time; by the name of the test."""

    def timed(parameters: dict[str, Any]) -> tuple[Outcome, float]:
        started = time.monotonic()
        return run(parameters), time.monotonic() - started

    with ThreadPoolExecutor(2) as pool:
        yield {
            item.name: pool.submit(timed, item.callspec.params)
            for item in request.session.items
            if isinstance(item, pytest.Function) and item.module is request.module and "background" in item.fixturenames
        }
        pool.shutdown(cancel_futures=True)


@contextmanager
def many_files(number: int) -> Iterator[None]:
    """As in a process that trains."""
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < 2 * number:
        pytest.skip("nobody may open that many files here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limit, 2 * number), most))
    opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(number)]
    try:
        yield
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))


def processes_of(marker: str) -> list[int]:
    """Those with the marker in their command line or environment."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                command, *variables = (Path(f"/proc/{entry}/{file}").read_bytes() for file in ("cmdline", "environ"))
            except OSError:
                continue
            if marker.encode() in command.replace(b"\0", b" ") + b"".join(variables):
                found.append(int(entry))
    return found


def wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


def gone(marker: str) -> bool:
    return wait_for(lambda: not processes_of(marker))
