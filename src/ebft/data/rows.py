"""Reading rows: JSONL, Parquet, CSV, plain text, a folder of these, a built-in name, or a dataset hub name.

Rows are dictionaries and come one at a time: a corpus larger than memory is read without being held.
"""

from __future__ import annotations

import codecs
import csv
import difflib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ebft.data import builtin
from ebft.data.row_format import Row
from ebft.errors import DataError, HubUnreachable, first_line, kind_of, what_is_wrong
from ebft.runtime.files import sha256_of
from ebft.runtime.machine import hub_unreachable

ROW_FILES = (".jsonl", ".ndjson", ".json", ".parquet", ".csv", ".tsv")
TEXT_FILES = (".txt", ".md", ".rst", ".py")
LOOKED_AT = 20  # first rows of a source, which show what it is like
SPLITS = ("train", "validation", "valid", "val", "dev", "test", "eval")


def read_rows(source: str, split: str = "train") -> Iterator[Row]:
    """The rows of a source, in a fixed order.

    Args:
        source: a file, a folder, a built-in name (`stdlib-code`, `stdlib-functions`, `toy-functions`) or a hub name,
            with `name:configuration` for one of several configurations.
        split: of a hub dataset, or of a folder whose files are named by split (`train.jsonl`, `train-0001.parquet`).
    """
    if source in builtin.SOURCES:
        yield from builtin.SOURCES[source](split)
        return
    check_place(source)
    path = Path(source).expanduser()
    if path.is_dir():
        for file in _files_of(path, split):
            yield from _read_file(file)
    elif path.is_file():
        yield from _read_file(path)
    else:
        yield from _read_hub(source, split)


def check_place(source: str) -> None:
    """A source that can only be a file or folder must be there."""
    path = Path(source).expanduser()
    if (path.suffix or source.startswith((".", "/", "~"))) and not path.exists():
        raise DataError(f"{source}: no such file or folder")


def fingerprint(source: str, split: str = "train") -> list[Any]:
    """What changes when the rows of a source change, at a glance: names, sizes and times of its files."""
    if source in builtin.SOURCES:
        return builtin.version(source, split)
    stats = [(str(f.resolve()), f.stat().st_size, f.stat().st_mtime_ns) for f in _local_files(source, split)]
    return [source, split, stats]


def contents(source: str, split: str = "train") -> list[Any]:
    """What changes when the rows of a source change, also after it was copied or moved: names and hashes of its
    files. It reads them whole."""
    if source in builtin.SOURCES:
        return builtin.version(source, split)
    return [(file.name, sha256_of(file)) for file in _local_files(source, split)] or [source, split]  # a hub name


def _local_files(source: str, split: str) -> list[Path]:
    """None for a hub name."""
    path = Path(source).expanduser()
    return _files_of(path, split) if path.is_dir() else [path] if path.is_file() else []


def count_rows(source: str, split: str = "train") -> int | None:
    """How many rows there are, for the time left; None where only reading them all would tell."""
    counts = [_count(file) for file in _local_files(source, split)]
    return sum(counts) if counts and all(counts) else None


def _count(file: Path) -> int:
    if file.suffix in TEXT_FILES:
        return 1
    if file.suffix == ".parquet":
        import pyarrow.parquet

        try:
            return pyarrow.parquet.read_metadata(file).num_rows
        except (pyarrow.ArrowException, OSError):  # reading it will say so
            return 0
    if file.suffix in (".jsonl", ".ndjson"):
        with file.open("rb") as text:
            return sum(block.count(b"\n") for block in iter(lambda: text.read(2**20), b""))
    return 0


def _files_of(folder: Path, split: str) -> list[Path]:
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix in ROW_FILES + TEXT_FILES)
    if not files:
        kinds = ", ".join(ROW_FILES + TEXT_FILES)
        raise DataError(f"{folder}: no data files in this folder; expected one of {kinds}")
    of_split = [p for p in files if _is_named_by(p, split)]
    others = [name for name in SPLITS if any(_is_named_by(p, name) for p in files)]
    if not of_split and others:  # never validation on training files because of a name
        raise DataError(f"{folder}: no files of the split {split!r}; there is {', '.join(map(repr, others))}")
    return of_split or files


def _is_named_by(file: Path, split: str) -> bool:
    """`train.jsonl`, `train-0001.parquet`; not `train.py`, which in a folder of sources is just a module."""
    if file.suffix not in (*ROW_FILES, ".txt"):
        return False
    return file.stem == split or file.stem.startswith((f"{split}-", f"{split}_", f"{split}."))


def _read_file(file: Path) -> Iterator[Row]:
    if file.stat().st_size == 0:
        raise DataError(f"{file}: the file is empty")
    if file.suffix in TEXT_FILES:
        yield {"text": file.read_text(encoding="utf-8", errors="replace")}
    elif file.suffix == ".parquet":
        yield from _read_parquet(file)
    elif file.suffix in (".csv", ".tsv"):
        yield from _read_csv(file)
    elif file.suffix == ".json" and _starts_with_bracket(file):
        rows = _parse(file.read_bytes(), file, None)
        for number, row in enumerate(rows, 1):
            yield _as_row(row, file, f"entry {number}")
    elif file.suffix in ROW_FILES:
        yield from _read_jsonl(file)
    else:
        raise DataError(f"{file}: unknown file type; use one of {', '.join(ROW_FILES + TEXT_FILES)}")


def _read_csv(file: Path) -> Iterator[Row]:
    csv.field_size_limit(2**31 - 1)  # a document may be longer than the 128 KiB the module allows
    with file.open(newline="", encoding="utf-8-sig") as lines:
        reader = csv.DictReader(lines, delimiter="\t" if file.suffix == ".tsv" else ",")
        try:
            if file.suffix == ".csv" and len(reader.fieldnames or ()) == 1:
                # Of a spreadsheet, where a comma is the decimal point.
                lines.seek(0)
                header = lines.readline()
                lines.seek(0)
                separators = [separator for separator in ";\t" if separator in header]
                reader = csv.DictReader(lines, delimiter=separators[0] if separators else ",")
            yield from reader
        except csv.Error as error:
            raise DataError(f"{file}: line {reader.line_num} is not valid CSV ({error})") from None
        except UnicodeDecodeError:
            raise _not_utf8(file) from None


def _read_jsonl(file: Path) -> Iterator[Row]:
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield _as_row(_parse(line, file, number), file, f"line {number}")


def _parse(text: bytes, file: Path, line: int | None) -> Any:
    """The value of a text of JSON, which is a line of the file or all of it; every error names the place."""
    where = f"{file}: the file" if line is None else f"{file}: line {line}"
    try:
        return json.loads(text.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        begun = error.doc.rstrip()
        if line == 1 and begun.startswith("{") and error.pos >= len(begun):  # as files begin that are indented
            raise DataError(
                f"{where} begins an object that does not end there; give a list of rows, [{{...}}, {{...}}], or one "
                "row on each line (JSONL)"
            ) from None
        place = where if line is not None else f"{file}: line {error.lineno}"
        raise DataError(f"{place} is not valid JSON ({what_is_wrong(error)})") from None
    except UnicodeDecodeError:
        raise _not_utf8(file) from None
    except (RecursionError, MemoryError):
        raise DataError(f"{where} is nested too deeply") from None
    except ValueError as error:  # a number of thousands of digits
        raise DataError(f"{where} cannot be read ({first_line(error)})") from None


def _not_utf8(file: Path) -> DataError:
    with file.open("rb") as lines:
        if lines.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            way_out = f"iconv -f utf-16 -t utf-8 {file.name} > new{file.suffix}"
            return DataError(f"{file}: the text is UTF-16, not UTF-8; save it as UTF-8, or `{way_out}`")
        lines.seek(0)
        number = next(number for number, line in enumerate(lines, 1) if not _is_utf8(line))
    way_out = f"iconv -f latin1 -t utf-8 {file.name} > new{file.suffix}"
    return DataError(f"{file}: line {number} is not UTF-8 text; save the file as UTF-8, or, from Latin-1, `{way_out}`")


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _as_row(row: Any, file: Path, where: str) -> Row:
    if not isinstance(row, dict):
        raise DataError(f"{file}: {where} is {kind_of(row)}, not an object with fields")
    return row


def _read_parquet(file: Path) -> Iterator[Row]:
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.ParquetFile(file)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: not a Parquet file ({first_line(error)})") from None
    batches = table.iter_batches(batch_size=1000)
    while True:
        try:
            batch = next(batches, None)
            rows = [] if batch is None else batch.to_pylist()
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise DataError(f"{file}: the file is damaged ({first_line(error)})") from None
        if batch is None:
            return
        yield from rows


def check_hub(source: str) -> None:
    """A dataset of a hub that cannot be reached must be in the cache."""
    is_here = source in builtin.SOURCES or Path(source).expanduser().exists()
    if not is_here and hub_unreachable() is not None:
        _from_hub("load_dataset_builder", source)


def _read_hub(source: str, split: str) -> Iterator[Row]:
    yield from _from_hub("load_dataset", source, split=split)


def _from_hub(function: str, source: str, **options: Any) -> Any:
    """What a function of `datasets` gives for a hub name."""
    close = difflib.get_close_matches(source, builtin.SOURCES, n=1)
    hint = f"did you mean {close[0]!r}?" if close else "give a file, a folder, a built-in name or a hub dataset"
    try:
        import datasets
    except ImportError:
        raise DataError(f"{source}: no such file; for a hub dataset install `datasets` ({hint})") from None
    name, _, configuration = source.partition(":")
    unreachable = hub_unreachable()
    try:
        return getattr(datasets, function)(name, configuration or None, **options)
    except Exception as error:  # the library raises many kinds for "not there" and "no network"
        if unreachable is not None:
            way_out = hint if close else "give a local copy"
            raise HubUnreachable(
                f"{source}: not a file, not in the cache of `datasets`, and {unreachable}; {way_out}"
            ) from None
        raise DataError(
            f"{source}: not a file, and the hub gave no dataset of this name: {first_line(error)} ({hint})"
        ) from None


def _starts_with_bracket(file: Path) -> bool:
    with file.open("rb") as text:
        return text.read(1024).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")
