"""Looking into the Python sources of a dataset. They are parsed, never run."""

from __future__ import annotations

import ast

from ebft.errors import DataError
from ebft.problems.records import Record


def check_python(source: str, name: str, record: Record) -> None:
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise DataError(f"{record.where}: the field {name!r} is not valid Python ({error})") from None


def definitions(source: str, kind: type[ast.FunctionDef] | type[ast.ClassDef]) -> tuple[str, ...]:
    return tuple(node.name for node in ast.parse(source).body if isinstance(node, kind))
