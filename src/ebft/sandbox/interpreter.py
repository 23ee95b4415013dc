"""The Python that runs our own scripts in the sandbox: the one that runs us."""

from __future__ import annotations

import compileall
import os
import sys
from functools import cache

from ebft.sandbox.command import INSIDE


@cache
def interpreter() -> tuple[str, tuple[str, ...]]:
    """Its path, and the folder that it needs besides /usr."""
    path = os.path.realpath(sys.executable)
    return path, () if sys.base_prefix.startswith("/usr") else (sys.base_prefix,)


def start_of(script: str) -> tuple[str, ...]:
    """The command that runs a script with the standard library alone, and touches nothing else."""
    return (interpreter()[0], "-I", "-S", "-B", "-X", "utf8", script)


def start_of_module(folder: str, module: str) -> tuple[str, ...]:
    """The same for `main` of one of our own modules. Python takes their bytecode, which it does not for a script."""
    run = f"import sys; sys.path.insert(0, {folder!r}); import {module}; sys.path.pop(0); {module}.main()"
    return (*start_of("-c"), run)


@cache
def compile_modules() -> None:
    """Writes the bytecode of our own modules beside them, if we may; else every program waits for their compilation."""
    compileall.compile_dir(INSIDE, quiet=2)
