"""Reading problems and samples: JSONL (also gzipped) with line numbers in every error message, or a hub dataset."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ebft.data.rows import read_rows
from ebft.errors import DataError, kind_of, what_is_wrong


@dataclass(frozen=True)
class Record:
    """One row and its place in the source, for error messages."""

    where: str
    row: dict[str, Any]

    def text(self, name: str, default: str | None = None) -> str:
        """A field that must be a string."""
        value = self.row.get(name, default)
        if value is None:
            raise self._without(name)
        if not isinstance(value, str):
            raise DataError(f"{self.where}: the field {name!r} is {kind_of(value)}, not a string")
        return value

    def texts(self, name: str, required: bool = False) -> list[str]:
        """A field that must be a list of strings."""
        value = self.row.get(name)
        if value is None and not required:
            return []
        if value is None:
            raise self._without(name)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise DataError(f"{self.where}: the field {name!r} is not a list of strings")
        return value

    def _without(self, name: str) -> DataError:
        return DataError(f"{self.where} has no field {name!r}; it has {', '.join(map(repr, self.row)) or 'none'}")


def read_records(source: str, split: str = "test") -> Iterator[Record]:
    """The rows of a `.jsonl` or `.jsonl.gz` file, or of a hub dataset (`name` or `name:configuration`)."""
    path = Path(source).expanduser()
    if path.is_dir():
        raise DataError(f"{source} is a folder; give one JSONL file")
    if not path.is_file():
        # The hub's own rows have no line numbers. A name with a suffix is a file that is not there.
        for number, row in enumerate(read_rows(source, split), 1):
            yield Record(f"{source}: row {number}", dict(row))
        return
    found = False
    for number, line in _lines(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{source}: line {number} is not valid JSON ({what_is_wrong(error)})") from None
        except (RecursionError, ValueError) as error:
            raise DataError(f"{source}: line {number} cannot be read ({type(error).__name__})") from None
        if not isinstance(row, dict):
            raise DataError(f"{source}: line {number} is {kind_of(row)}, not an object with fields")
        found = True
        yield Record(f"{source}: line {number}", row)
    if not found:
        raise DataError(f"{source}: the file is empty")


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    number = 0
    with path.open("rb") as plain:
        zipped = plain.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path, "rb") if zipped else path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{path}: line {number} is not UTF-8 text") from None
    except (gzip.BadGzipFile, EOFError):
        raise DataError(f"{path}: the gzip file is damaged after line {number}") from None
