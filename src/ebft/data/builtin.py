"""Data that every machine has: the standard library of the running Python, and functions made up by rule."""

from __future__ import annotations

import ast
import inspect
import sys
import sysconfig
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ebft.data.toy_functions import toy_functions


def stdlib_code() -> Iterator[dict[str, Any]]:
    """One document per module."""
    for file in _modules():
        yield {"text": file.read_text(encoding="utf-8", errors="replace"), "source": file.name}


def stdlib_functions() -> Iterator[dict[str, Any]]:
    """Signature and docstring as the prompt, the body as the completion, for functions that have both."""
    for file in _modules():
        source = file.read_text(encoding="utf-8", errors="replace")
        try:
            tree = ast.parse(source)
        except SyntaxError:
            continue
        lines = source.splitlines(keepends=True)
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                and ast.get_docstring(node)
                and len(node.body) > 1
            ):
                signature_and_docstring = lines[node.lineno - 1 : node.body[0].end_lineno]
                body = lines[node.body[0].end_lineno : node.end_lineno]
                completion = _dedent("".join(body), node.col_offset)
                if completion.strip():
                    yield {
                        "prompt": _dedent("".join(signature_and_docstring), node.col_offset),
                        "completion": completion,
                        "source": f"{file.name}:{node.lineno}",
                    }


# From a split to its rows; the standard library has no splits.
SOURCES: dict[str, Callable[[str], Iterator[dict[str, Any]]]] = {
    "stdlib-code": lambda split: stdlib_code(),
    "stdlib-functions": lambda split: stdlib_functions(),
    "toy-functions": toy_functions,
}


def version(source: str, split: str) -> list[str]:
    """What changes when the rows do: the Python whose library it is, or the rule that makes them up."""
    if source == "toy-functions":
        rule = Path(inspect.getfile(toy_functions)).read_bytes()
        return [source, split, f"{zlib.crc32(rule):08x}"]
    return [source, sys.version]


def _modules() -> list[Path]:
    """Top-level modules and packages, tests left out, in a fixed order."""
    root = Path(sysconfig.get_paths()["stdlib"])
    skip = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo", "__pycache__"}
    return sorted(p for p in root.rglob("*.py") if not skip & set(p.relative_to(root).parts))


def _dedent(text: str, columns: int) -> str:
    """Take a method's indentation off, leaving the function as if it stood at the top level."""
    return "".join(line[columns:] if line[:columns].isspace() else line for line in text.splitlines(keepends=True))
