"""Looking into the Python sources of a dataset. They are parsed, never run."""

from __future__ import annotations

import ast

from ebft.errors import DataError
from ebft.problems.records import Record

# What the parser raises: of a text that is nested too deeply, the last two.
NOT_PYTHON = (SyntaxError, ValueError, RecursionError, MemoryError)


def check_python(source: str, name: str, record: Record) -> None:
    try:
        ast.parse(source)
    except NOT_PYTHON as error:
        reason = "nested too deeply" if isinstance(error, (RecursionError, MemoryError)) else error
        raise DataError(f"{record.where}: the field {name!r} is not valid Python ({reason})") from None


def definitions(source: str, kind: type[ast.FunctionDef] | type[ast.ClassDef]) -> tuple[str, ...]:
    return tuple(node.name for node in ast.parse(source).body if isinstance(node, kind))
