"""Tokenised once, kept on disk: flat files of tokens and answer flags, and of each document its boundaries and how many
of its tokens are answers.

They are memory-mapped, so a corpus larger than RAM costs no memory. A store is written under a temporary name and
renamed when it is whole: one that was cut off is never taken for complete.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import itertools
import json
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ebft.data.row_format import PLAIN, Document, Row, RowFormat, encode
from ebft.data.rows import fingerprint, read_rows
from ebft.errors import DataError
from ebft.runtime.files import cache_directory
from ebft.runtime.messages import tracked

FORMAT_VERSION = 4


@dataclass(frozen=True)
class TokenStore:
    tokens: NDArray[np.uint32]  # all documents, one after the other
    answers: NDArray[np.uint8]
    offsets: NDArray[np.int64]  # [documents + 1]
    answer_counts: NDArray[np.int64]  # [documents] tokens that are answers

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)

    def checksum(self) -> str:
        """The same for the same documents, wherever and whenever they were tokenised."""
        value = zlib.crc32(self.offsets.tobytes())
        for array in (self.tokens, self.answers):
            for start in range(0, len(array), 2**24):
                value = zlib.crc32(array[start : start + 2**24].tobytes(), value)
        return f"{value:08x}"

    @classmethod
    def open(cls, folder: Path) -> TokenStore:
        return cls(
            np.memmap(folder / "tokens", np.uint32, mode="r"),
            np.memmap(folder / "answers", np.uint8, mode="r"),
            np.load(folder / "offsets.npy", mmap_mode="r"),
            np.load(folder / "answer_counts.npy", mmap_mode="r"),
        )

    @classmethod
    def from_documents(cls, documents: Iterable[Document]) -> TokenStore:
        """On disk while the process lives."""
        folder = Path(tempfile.mkdtemp(prefix="ebft-tokens-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        _write(folder, documents)
        return cls.open(folder)


def tokenize_source(
    source: str, tokenizer: Any, split: str = "train", row_format: RowFormat = PLAIN, limit: int | None = None
) -> TokenStore:
    """The tokens of a source, from the cache if they were made before."""
    identity = [FORMAT_VERSION, fingerprint(source, split), _identity(tokenizer), vars(row_format), limit]
    key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:24]
    home = cache_directory() / "tokens"
    folder = home / key
    if not folder.exists():
        home.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f"{key}.", dir=home))
        try:
            rows = itertools.islice(read_rows(source, split), limit)
            _write(partial, _documents(rows, tokenizer, row_format, source, limit))
            with contextlib.suppress(OSError):  # another process was first
                partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return TokenStore.open(folder)


def tokenize_rows(rows: Iterable[Row], tokenizer: Any) -> TokenStore:
    """The tokens of rows given as a `datasets.Dataset` or a list of dictionaries."""
    total = len(rows) if isinstance(rows, Sized) else None
    return TokenStore.from_documents(_documents(rows, tokenizer, PLAIN, "the dataset", total))


def _documents(
    rows: Iterable[Row], tokenizer: Any, row_format: RowFormat, source: str, total: int | None
) -> Iterator[Document]:
    number = 0
    for number, row in enumerate(tracked(rows, f"tokenising {source}", total), 1):
        try:
            yield encode(row, tokenizer, row_format)
        except DataError as error:
            raise DataError(f"{source}: row {number}: {error}") from None
    if not number:
        raise DataError(f"{source}: no rows")


def _write(folder: Path, documents: Iterable[Document]) -> None:
    lengths, answer_counts = [0], list[int]()
    with (folder / "tokens").open("wb") as tokens, (folder / "answers").open("wb") as answers:
        for document in documents:
            np.array(document.tokens, np.uint32).tofile(tokens)
            np.array(document.answers, np.uint8).tofile(answers)
            lengths.append(len(document.tokens))
            answer_counts.append(sum(document.answers))
    np.save(folder / "answer_counts.npy", np.array(answer_counts, np.int64))
    np.save(folder / "offsets.npy", np.cumsum(lengths, dtype=np.int64))


def _identity(tokenizer: Any) -> list[Any]:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    content = backend.to_str() if backend is not None else json.dumps(tokenizer.get_vocab(), sort_keys=True)
    template, *adds = (getattr(tokenizer, name, None) for name in ("chat_template", "add_bos_token", "add_eos_token"))
    hashed = hashlib.sha256(content.encode()).hexdigest()
    return [type(tokenizer).__name__, hashed, tokenizer.eos_token, str(template), *adds]
