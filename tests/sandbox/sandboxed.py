"""What the tests of code evaluation share: whether a sandbox is there, a small problem, and processes by name."""

import time
from collections.abc import Callable, Iterable
from functools import cache

import psutil
import pytest

from ebft.problems.problem import Attempt, run_many
from ebft.sandbox.box import Sandbox, SandboxError
from ebft.sandbox.bubblewrap import Limits
from ebft.sandbox.other_languages import LANGUAGES
from ebft.sandbox.python_tests import Outcome

SMALL = Limits(seconds=1.5, memory_mib=256, processes=16, disk_mib=16, output_kib=64)
LONG = Limits(seconds=30.0)


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


def not_passed(attempts: Iterable[Attempt], limits: Limits = LONG) -> dict[str, Outcome]:
    """Of answers, run two at a time, those that did not pass, by their tags."""
    found = run_many(attempts, limits=limits, workers=2)
    return {str(attempt.tag): outcome for attempt, outcome in found if not outcome.passed}


def processes_of(marker: str) -> list[int]:
    """Those with the marker in their command line or environment."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        words = [*(process.info["cmdline"] or ()), *map("=".join, (process.info["environ"] or {}).items())]
        if marker in " ".join(words):
            found.append(process.pid)
    return found


def wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def gone(marker: str) -> bool:
    return wait_for(lambda: not processes_of(marker))
