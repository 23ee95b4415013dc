"""The messages in docs/troubleshooting.md are those that ebft prints."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
VALUE = r"\.\.\.|'[^']*'|=\S*|\b\d+\b|\bnan\b"  # what depends on the case


def texts_of_source() -> str:
    """All texts in the source, those in several pieces put together; a line break where a value is filled in."""
    found = []
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "\n" for part in node.values)
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


def messages() -> list[str]:
    """The code in the first column of the tables, without what is in brackets behind it."""
    page = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
    cells = re.findall(r"^\| (`.*?) \|", page, flags=re.MULTILINE)
    quoted = [re.findall(r"``(.+?)``|`([^`]+)`", re.sub(r"(?<=`) \(.*", "", cell)) for cell in cells]
    return ["".join(groups) for of_cell in quoted for groups in of_cell if "load_best_model" not in "".join(groups)]


def test_every_message_is_in_the_source() -> None:
    source, found = texts_of_source(), messages()
    assert len(found) > 30, "the tables are not read as they should be"
    pieces = [(message, piece.strip(" ,;:()?")) for message in found for piece in re.split(VALUE, message)]
    # A single word is in some text or other, and may be a value.
    assert [(message, piece) for message, piece in pieces if " " in piece and piece not in source] == []


def test_a_message_that_is_not_printed_is_noticed() -> None:
    assert "codec can't decode byte" not in texts_of_source()
