"""Sequences of T tokens, cut from documents that were tokenised once and are kept on disk in flat files,
memory-mapped. Which documents a dataset holds, and in which order, is an index: splits and mixtures copy nothing.

Packed: documents follow each other without a gap and are cut every T tokens. Unpacked: one document a row, cut at T
and padded. A sequence knows for every token which document it is of (negative: padding) and whether it is an answer.
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
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate.data_loader import SeedableRandomSampler, prepare_data_loader
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, SequentialSampler

from ebft.data.row_format import PLAIN, Document, Row, RowFormat, encode
from ebft.data.rows import contents, read_rows
from ebft.errors import ConfigError, DataError
from ebft.runtime import processes
from ebft.runtime.files import Json, cache_directory
from ebft.runtime.messages import progress

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase as Tokenizer
    from transformers import TrainingArguments

PADDING = -1
NOTHING = -1  # a row that is not there: only padding, no anchors, no truth tokens
FORMAT_VERSION = 4  # of the files of tokens


# ---- documents as tokens, on disk ------------------------------------------------------------------------------------


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
        value = 0
        for array in (self.offsets, self.tokens, self.answers):
            value = zlib.crc32(array.data, value)
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
    source: str, tokenizer: Tokenizer, split: str = "train", row_format: RowFormat = PLAIN, limit: int | None = None
) -> TokenStore:
    """The tokens of a source, from the cache if they were made before."""
    identity = [FORMAT_VERSION, contents(source, split), _identity(tokenizer), vars(row_format), limit]
    key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:24]
    home = cache_directory() / "tokens"
    folder = home / key
    if not folder.exists():
        home.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f"{key}.", dir=home))
        try:
            rows = itertools.islice(read_rows(source, split), limit)
            _write(partial, _documents(rows, tokenizer, row_format, source))
            with contextlib.suppress(OSError):  # another process was first
                partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return TokenStore.open(folder)


def tokenize_rows(rows: Iterable[Row], tokenizer: Tokenizer) -> TokenStore:
    """The tokens of rows given as a `datasets.Dataset` or a list of dictionaries."""
    return TokenStore.from_documents(_documents(rows, tokenizer, PLAIN, "the dataset"))


def _documents(rows: Iterable[Row], tokenizer: Tokenizer, row_format: RowFormat, source: str) -> Iterator[Document]:
    number = 0
    with progress(f"tokenising {source}", None) as advance:
        for number, row in enumerate(rows, 1):
            try:
                yield encode(row, tokenizer, row_format)
            except DataError as error:
                raise DataError(f"{source}: row {number}: {error}") from None
            advance(1)
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


def _identity(tokenizer: Tokenizer) -> list[object]:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    content = backend.to_str() if backend is not None else json.dumps(tokenizer.get_vocab(), sort_keys=True)
    settings = (getattr(tokenizer, name, None) for name in ("chat_template", "add_bos_token", "add_eos_token"))
    return [type(tokenizer).__name__, content, tokenizer.eos_token, *map(str, settings)]


# ---- which documents, in which order ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class DocumentIndex:
    """Documents of one or several stores, in the order they are packed."""

    stores: tuple[TokenStore, ...]
    store: NDArray[np.int32]  # [documents] which store
    number: NDArray[np.int64]  # [documents] which document of it
    lengths: NDArray[np.int64]  # [documents]
    answer_counts: NDArray[np.int64]  # [documents] tokens that are answers

    @classmethod
    def of(cls, store: TokenStore) -> DocumentIndex:
        first = np.zeros(len(store), np.int32)
        return cls((store,), first, np.arange(len(store)), store.lengths, store.answer_counts)

    def __len__(self) -> int:
        return len(self.number)

    def select(self, which: NDArray[np.int64]) -> DocumentIndex:
        lengths, answer_counts = self.lengths[which], self.answer_counts[which]
        return DocumentIndex(self.stores, self.store[which], self.number[which], lengths, answer_counts)

    def where(self, place: int) -> tuple[TokenStore, slice]:
        """The store that holds a document, and its tokens there."""
        store = self.stores[self.store[place]]
        begin = int(store.offsets[self.number[place]])
        return store, slice(begin, begin + int(self.lengths[place]))

    def tokens(self, place: int) -> bytes:
        store, inside = self.where(place)
        return store.tokens[inside].tobytes()

    def count_also_in(self, other: DocumentIndex) -> int:
        """How many of these documents are in the other index too, token by token."""
        mine = Counter(map(self.tokens, range(len(self))))
        # Only documents that are as long as one of these can be equal to it; the others are not read.
        candidates = np.flatnonzero(np.isin(other.lengths, self.lengths))
        return sum(mine.pop(other.tokens(int(place)), 0) for place in candidates)

    def split(self, held_out: float, seed: int) -> tuple[DocumentIndex, DocumentIndex]:
        """Hold a share (below 1) or a number of documents out, chosen by the seed: (the rest, what is held out)."""
        count = int(held_out) if held_out >= 1 or not held_out else max(1, round(held_out * len(self)))
        if count >= len(self):
            raise DataError(f"a split of {held_out:g} leaves no training documents of {len(self)}; use a smaller one")
        order = np.random.default_rng(seed).permutation(len(self))
        return self.select(np.sort(order[count:])), self.select(np.sort(order[:count]))


def mix(indices: Sequence[DocumentIndex], weights: Sequence[float], seed: int) -> DocumentIndex:
    """Documents of several stores in the given proportions, none twice, shuffled together by the seed: as many as the
    store that runs out first allows."""
    if len(indices) != len(weights) or min(weights) <= 0:
        raise DataError(f"{len(indices)} sources need a weight above 0 each, got {list(weights)}")
    shares = np.array(weights, float) / sum(weights)
    total = min(len(index) / share for index, share in zip(indices, shares, strict=True))
    random = np.random.default_rng(seed)
    columns = []
    for number, (index, share) in enumerate(zip(indices, shares, strict=True)):
        kept = index.select(random.permutation(len(index))[: max(1, int(total * share + 1e-9))])
        columns.append((np.full(len(kept), number, np.int32), kept.number, kept.lengths, kept.answer_counts))
    stores = tuple(store for index in indices for store in index.stores)
    joined = DocumentIndex(stores, *map(np.concatenate, zip(*columns, strict=True)))
    return joined.select(random.permutation(len(joined)))


# ---- sequences -------------------------------------------------------------------------------------------------------


class SequenceDataset(Dataset[dict[str, Tensor]]):
    """Rows of T tokens: `input_ids`, `document_ids` (PADDING where there is none), `answer_mask`, `sequence_id`; and
    the row NOTHING. packing: documents one after the other, or one a row."""

    def __init__(self, index: DocumentIndex, context_length: int, packing: bool = True, pad_token_id: int = 0) -> None:
        self.index, self.context_length, self.packing, self.pad_token_id = index, context_length, packing, pad_token_id
        self.lengths = index.lengths
        self.ends = np.cumsum(self.lengths)
        self.total_tokens = int(self.ends[-1]) if len(index) else 0

    def __len__(self) -> int:
        if not self.packing:
            return len(self.index)
        rows, rest = divmod(self.total_tokens, self.context_length)
        return rows + (rest > 1)  # the last row may be short; one token is not worth a row of padding

    def first(self, rows: int) -> SequenceDataset:
        """The documents that fill the first so many rows, and no more rows than these."""
        if len(self) <= rows:
            return self
        tokens = rows * self.context_length
        documents = int((self.ends < tokens).sum()) + 1 if self.packing else rows
        index = self.index.select(np.arange(documents))
        part = SequenceDataset(index, self.context_length, self.packing, self.pad_token_id)
        part.total_tokens = min(part.total_tokens, tokens)
        return part

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        if not 0 <= row < len(self) and row != NOTHING:
            raise IndexError(row)
        T, begin, end = self.context_length, 0, 0
        tokens, documents = np.full(T, self.pad_token_id, np.int64), np.full(T, PADDING, np.int64)
        answers = np.zeros(T, bool)
        if row != NOTHING:
            begin = row * T if self.packing else int(self.ends[row] - self.lengths[row])
            end = min(begin + T, self.total_tokens if self.packing else int(self.ends[row]))
        at, first = begin, int(np.searchsorted(self.ends, begin, side="right"))
        place = first
        while at < end:  # the documents in this row
            stop = min(end, int(self.ends[place]))
            store, inside = self.index.where(place)
            behind = inside.stop - int(self.ends[place])  # from places in the dataset to places in the store
            part, here = slice(at + behind, stop + behind), slice(at - begin, stop - begin)
            tokens[here], answers[here], documents[here] = store.tokens[part], store.answers[part], place - first
            at, place = stop, place + 1
        return {
            "input_ids": torch.from_numpy(tokens),
            "document_ids": torch.from_numpy(documents),
            "answer_mask": torch.from_numpy(answers),
            "sequence_id": torch.tensor(row),
        }


def pad_token_id(tokenizer: Tokenizer) -> int:
    """What stands in the place of padding. Which one does not matter: padding is known by position, never by value."""
    return next((token for token in (tokenizer.pad_token_id, tokenizer.eos_token_id) if token is not None), 0)


def end_token_ids(tokenizer: Tokenizer | None, completions_end: bool) -> Tensor | None:
    """What ends a completion, on the host: layouts need it there. None if nothing does."""
    return torch.tensor([tokenizer.eos_token_id]) if tokenizer is not None and completions_end else None


@dataclass(frozen=True)
class OnHost:
    """What layouts are built from. It has no `to`: nothing moves it to a GPU, and layouts need not wait for one."""

    document_ids: Tensor
    answer_mask: Tensor
    input_ids: Tensor


Batch = Json  # tensors of some rows [b, ...] by name, and what the host knows of them


def collate(rows: Sequence[dict[str, Tensor]]) -> Batch:
    batch = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    return {**batch, "on_host": OnHost(batch["document_ids"], batch["answer_mask"], batch["input_ids"])}


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The batch's tensors on the device; what is on the host stays there."""
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in batch.items()}


# ---- which rows a process sees ---------------------------------------------------------------------------------------


class Share(Sampler[int]):
    """Every k-th row of one order, for each of k processes: together they take the very batches, in the very order,
    that one process would take. All have the same number of rows, filled up with NOTHING: no row is seen twice.

    full: so many that all batches are of one size.
    """

    def __init__(self, order: Any, batch_size: int, drop_last: bool = False, full: bool = False) -> None:
        self.order, count = order, processes.count()
        self.rows = -(-len(order) // count)
        if drop_last:
            self.rows = len(order) // (batch_size * count) * batch_size
        elif full:
            self.rows += -self.rows % batch_size

    def set_epoch(self, epoch: int) -> None:
        if hasattr(self.order, "set_epoch"):
            self.order.set_epoch(epoch)

    def __len__(self) -> int:
        return self.rows

    def __iter__(self) -> Iterator[int]:
        mine = list(self.order)[processes.rank() :: processes.count()][: self.rows]
        return iter(mine + [NOTHING] * (self.rows - len(mine)))


def compiles_for_sizes(config: TrainingArguments) -> bool:
    """On a GPU code is compiled for every size of a batch: half a minute for a short last one, more than it takes to
    compute rows of nothing."""
    return bool(config.device.type == "cuda")


def train_loader(config: TrainingArguments, dataset: Any) -> DataLoader:
    """This process's part of the batches."""
    if config.train_sampling_strategy not in ("random", "sequential"):
        raise ConfigError("train_sampling_strategy is random or sequential here")
    order: Any = SequentialSampler(dataset)
    if config.train_sampling_strategy == "random":
        order = SeedableRandomSampler(dataset, data_seed=config.data_seed)  # as accelerate has it in one process
    size, drop_last, full = config.per_device_train_batch_size, config.dataloader_drop_last, compiles_for_sizes(config)
    loader: DataLoader = DataLoader(
        dataset,
        size,
        sampler=Share(order, size, drop_last, full),
        collate_fn=collate,
        num_workers=config.dataloader_num_workers,
        pin_memory=config.dataloader_pin_memory,
        persistent_workers=config.dataloader_persistent_workers,
        prefetch_factor=config.dataloader_prefetch_factor,
    )
    # The batches are split already: for accelerate, which puts them on the device, there is one process.
    return prepare_data_loader(loader, config.device, num_processes=1, process_index=0, put_on_device=True)


def evaluation_loader(config: TrainingArguments, dataset: SequenceDataset) -> DataLoader:
    """This process's part of all rows; `join_rows` puts the parts together."""
    size = config.per_device_eval_batch_size
    rows = Share(range(len(dataset)), size, full=compiles_for_sizes(config))
    return DataLoader(dataset, size, sampler=rows, collate_fn=collate)
