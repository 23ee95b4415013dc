"""The Python that runs our own scripts in the sandbox: the one that runs us."""

from __future__ import annotations

import os
import sys
from functools import cache


@cache
def interpreter() -> tuple[str, tuple[str, ...]]:
    """Its path, and the folder that it needs besides /usr."""
    path = os.path.realpath(sys.executable)
    return path, () if sys.base_prefix.startswith("/usr") else (sys.base_prefix,)


def start_of(script: str) -> tuple[str, ...]:
    """The command that runs a script with the standard library alone, and touches nothing else."""
    return (interpreter()[0], "-I", "-S", "-B", "-X", "utf8", script)
