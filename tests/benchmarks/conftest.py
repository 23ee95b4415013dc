"""Makes the benchmarks importable by the names under which they import each other, and runs them as programs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))


@pytest.fixture(scope="session")
def run_program() -> Callable[[str, str], str]:
    """Standard output of `python benchmarks/NAME arguments`, which must succeed."""

    def run(name: str, arguments: str) -> str:
        command = [sys.executable, str(BENCHMARKS / name), *arguments.split()]
        # One thread from the start: several test processes on few cores would wait for each other.
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        finished = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert finished.returncode == 0, finished.stdout + finished.stderr
        return finished.stdout

    return run
