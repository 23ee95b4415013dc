"""Tests of Python programs, in two processes that run `inside/driver.py` and `inside/candidate.py`."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from ebft.sandbox.command import Limits
from ebft.sandbox.interpreter import start_of_module
from ebft.sandbox.isolated_tests import IsolatedProcess, Outcome, run_isolated_tests
from ebft.sandbox.isolation import Sandbox

PACKAGES = ("numpy",)  # of the standard library all, of other packages these, where they are installed


@dataclass(frozen=True)
class PythonTests:
    """Tests of a Python program.

    Args:
        variants: interpretations of the model's answer, best first, each a list of sources run one after the other.
        tests: source of the tests; `setup` runs before.
        names: what the tests call; `classes` are those of which the tests make objects.
        modules: of the standard library, that the tests use without importing them.
        prompt: source whose definitions the tests may use, as the problem gives them.
        sanitize: of an answer that does not compile take the longest part that does, and of what follows the functions
            that the tests call only what they need.
        check: hand the program's function of this name to the tests' function `check`.
    """

    variants: Sequence[Sequence[str]]
    tests: str
    setup: str = ""
    names: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    prompt: str = ""
    check: str = ""
    sanitize: bool = False


def run_python(sandbox: Sandbox, tests: PythonTests, limits: Limits) -> Outcome:
    folders, packages = _package_places()
    # numpy's threads each want address space, and would only wait for each other.
    environment = (("OPENBLAS_NUM_THREADS", "1"), ("OMP_NUM_THREADS", "1"))
    program = {
        "variants": tests.variants,
        "names": [*tests.names, *tests.classes],
        "sanitize": tests.sanitize,
        "packages": packages,
    }
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

    def started(module: str, job: dict[str, Any]) -> IsolatedProcess:
        return IsolatedProcess(start_of_module(sandbox.scripts, module), job, folders, environment, module=module)

    return run_isolated_tests(
        sandbox,
        started("driver", driver),
        started("candidate", program),
        replace(limits, disk_mib=max(limits.disk_mib, 1)),
    )


@cache
def _package_places() -> tuple[tuple[str, ...], list[str]]:
    """The folders of further packages that are not visible anyway, and where to look for packages."""
    folders: list[str] = []
    places: list[str] = []
    for package in PACKAGES:
        found = importlib.util.find_spec(package)
        if found is None or found.origin is None:
            continue
        home = Path(found.origin).parent
        places.append(str(home.parent))
        beside = [path for path in (home, home.parent / f"{package}.libs") if path.is_dir()]
        folders += [str(path) for path in beside if not str(path).startswith((f"{sys.base_prefix}/", "/usr/"))]
    return tuple(folders), places
