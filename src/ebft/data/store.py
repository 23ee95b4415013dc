"""Tokenised once, kept on disk: flat files of tokens and answer flags, and of each document its boundaries and how many
of its tokens are answers.

They are memory-mapped, so a corpus larger than RAM costs no memory. A store is written under a temporary name and
renamed when it is whole: one that was cut off is never taken for complete.
"""

from __future__ import annotations

import atexit
import hashlib
import itertools
import json
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ebft.data.row_format import Document, Row, RowFormat, encode
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
        """In memory, for rows that are in memory anyway."""
        kept = list(documents)
        return cls(
            np.array([token for d in kept for token in d.tokens], np.uint32),
            np.array([answer for d in kept for answer in d.answers], np.uint8),
            np.cumsum([0, *(len(d.tokens) for d in kept)], dtype=np.int64),
            np.array([sum(d.answers) for d in kept], np.int64),
        )


def tokenize_source(
    source: str,
    tokenizer: Any,
    split: str = "train",
    row_format: RowFormat | None = None,
    limit: int | None = None,
) -> TokenStore:
    """The tokens of a source, from the cache if they were made before."""
    what = [fingerprint(source, split), _tokenizer_identity(tokenizer), vars(row_format or RowFormat()), limit]
    identity = json.dumps([FORMAT_VERSION, *what], sort_keys=True)
    key = hashlib.sha256(identity.encode()).hexdigest()[:24]
    home = cache_directory() / "tokens"
    folder = home / key
    if not (folder / "offsets.npy").exists():
        home.mkdir(parents=True, exist_ok=True)
        rows = itertools.islice(read_rows(source, split), limit)
        partial = Path(tempfile.mkdtemp(prefix=f"{key}.", dir=home))
        try:
            _write(partial, rows, tokenizer, row_format, source, limit)
            (partial / "identity.json").write_text(identity)
            try:
                partial.rename(folder)
            except OSError:  # another process was first
                if not (folder / "offsets.npy").exists():
                    raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return TokenStore.open(folder)


def tokenize_rows(rows: Iterable[Row], tokenizer: Any, row_format: RowFormat | None = None) -> TokenStore:
    """The tokens of rows given as a `datasets.Dataset` or a list of dictionaries: on disk while the process lives."""
    folder = Path(tempfile.mkdtemp(prefix="ebft-tokens-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _write(folder, rows, tokenizer, row_format, "the dataset", len(rows) if isinstance(rows, Sized) else None)
    return TokenStore.open(folder)


def _write(
    folder: Path, rows: Iterable[Row], tokenizer: Any, row_format: RowFormat | None, source: str, total: int | None
) -> None:
    lengths, answer_counts = [0], []
    with (folder / "tokens").open("wb") as tokens, (folder / "answers").open("wb") as answers:
        for number, row in enumerate(tracked(rows, f"tokenising {source}", total), 1):
            try:
                document = encode(row, tokenizer, row_format)
            except DataError as error:
                raise DataError(f"{source}: row {number}: {error}") from None
            np.array(document.tokens, np.uint32).tofile(tokens)
            np.array(document.answers, np.uint8).tofile(answers)
            lengths.append(len(document.tokens))
            answer_counts.append(sum(document.answers))
    if not answer_counts:
        raise DataError(f"{source}: no rows")
    np.save(folder / "answer_counts.npy", np.array(answer_counts, np.int64))
    np.save(folder / "offsets.npy", np.cumsum(lengths, dtype=np.int64))


def _tokenizer_identity(tokenizer: Any) -> list[Any]:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    content = backend.to_str() if backend is not None else json.dumps(tokenizer.get_vocab(), sort_keys=True)
    return [
        type(tokenizer).__name__,
        hashlib.sha256(content.encode()).hexdigest(),
        tokenizer.eos_token,
        str(getattr(tokenizer, "chat_template", None)),
        getattr(tokenizer, "add_bos_token", None),
        getattr(tokenizer, "add_eos_token", None),
    ]
