"""Sequences of T tokens, cut from tokenised documents.

Packed: documents follow each other without a gap and are cut every T tokens. Unpacked: one document a row, cut at T
and padded. A sequence knows for every token which document it is of (negative: padding) and whether it is an answer.
Which documents a dataset holds, and in which order, is an index: splits and mixtures copy nothing. Each process takes
its part of the very batches, in the very order, that one process would take.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from accelerate.data_loader import SeedableRandomSampler, prepare_data_loader
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, Sampler, SequentialSampler

from ebft.data.store import TokenStore
from ebft.errors import ConfigError, DataError
from ebft.runtime import processes

PADDING = -1
NOTHING = -1  # a row that is not there: only padding, no anchors, no truth tokens
SAMPLING_STRATEGIES = ("random", "sequential")


@dataclass(frozen=True)
class DocumentIndex:
    """Documents of one or several stores, in the order they are packed."""

    stores: tuple[TokenStore, ...]
    store: NDArray[np.int32]  # [documents] which store
    number: NDArray[np.int64]  # [documents] which document of it

    @classmethod
    def of(cls, store: TokenStore) -> DocumentIndex:
        return cls((store,), np.zeros(len(store), np.int32), np.arange(len(store)))

    def __len__(self) -> int:
        return len(self.number)

    @property
    def lengths(self) -> NDArray[np.int64]:
        return self._of_each([store.lengths for store in self.stores])

    @property
    def answer_counts(self) -> NDArray[np.int64]:
        """[documents] tokens that are answers"""
        return self._of_each([store.answer_counts for store in self.stores])

    def _of_each(self, per_store: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
        first = np.cumsum([0, *map(len, per_store)])[self.store]
        return np.concatenate(per_store)[first + self.number]

    def select(self, which: NDArray[np.int64]) -> DocumentIndex:
        return DocumentIndex(self.stores, self.store[which], self.number[which])

    def where(self, place: int) -> tuple[TokenStore, slice]:
        """The store that holds a document, and its tokens there."""
        store = self.stores[self.store[place]]
        start, end = (int(store.offsets[self.number[place] + k]) for k in (0, 1))
        return store, slice(start, end)

    def _tokens_of(self, place: int) -> bytes:
        store, inside = self.where(place)
        return store.tokens[inside].tobytes()

    def count_also_in(self, other: DocumentIndex) -> int:
        """How many of these documents are in the other index too, token by token."""
        mine = Counter(map(self._tokens_of, range(len(self))))
        # Only documents that are as long as one of these can be equal to it; the others are not read.
        candidates = np.flatnonzero(np.isin(other.lengths, self.lengths))
        return sum(mine.pop(other._tokens_of(int(place)), 0) for place in candidates)

    def split(
        self, held_out: float | int, seed: int, setting: str = "validation_split"
    ) -> tuple[DocumentIndex, DocumentIndex]:
        """Hold a share (below 1) or a number of documents out, chosen by the seed: (training, validation)."""
        count = int(held_out) if held_out >= 1 else max(1, round(held_out * len(self)))
        if count >= len(self):
            raise DataError(f"{setting}={held_out:g} leaves no training documents of {len(self)}; use a smaller one")
        order = np.random.default_rng(seed).permutation(len(self))
        return self.select(np.sort(order[count:])), self.select(np.sort(order[:count]))

    def without_test(self, test_split: float, seed: int) -> tuple[DocumentIndex, DocumentIndex | None]:
        """Take the documents out that are for testing only; validation and training share the rest."""
        return self.split(test_split, seed, "test_split") if test_split else (self, None)


def mix(indices: Sequence[DocumentIndex], weights: Sequence[float], seed: int) -> DocumentIndex:
    """Documents of several sources in the given proportions, none twice, shuffled together by the seed: as many as the
    source that runs out first allows."""
    if len(indices) != len(weights) or min(weights) <= 0:
        raise DataError(
            f"a mixture needs one weight above 0 per source, got {list(weights)} for {len(indices)} sources"
        )
    shares = np.array(weights, float) / sum(weights)
    total = min(len(index) / share for index, share in zip(indices, shares, strict=True))
    random = np.random.default_rng(seed)
    stores: tuple[TokenStore, ...] = ()
    store, number = [], []
    for index, share in zip(indices, shares, strict=True):
        kept = index.select(random.permutation(len(index))[: max(1, int(total * share + 1e-9))])
        store.append(kept.store + np.int32(len(stores)))
        number.append(kept.number)
        stores += index.stores
    joined = DocumentIndex(stores, np.concatenate(store), np.concatenate(number))
    return joined.select(random.permutation(len(joined)))


class SequenceDataset(Dataset[dict[str, Tensor]]):
    """Rows of T tokens: `input_ids`, `document_ids` (PADDING where there is none), `answer_mask`, `sequence_id`; and
    the row NOTHING. packing: documents one after the other, or one a row."""

    def __init__(self, index: DocumentIndex, context_length: int, packing: bool = True, pad_token_id: int = 0) -> None:
        self.index, self.context_length, self.packing, self.pad_token_id = index, context_length, packing, pad_token_id
        self.lengths = index.lengths
        self.ends = np.cumsum(self.lengths)
        self.total_tokens = int(self.ends[-1]) if len(index) else 0

    def __len__(self) -> int:
        # The last packed row may be short; a rest of a token or two is not worth a row of padding.
        if not self.packing:
            return len(self.index)
        return max(-(-self.total_tokens // self.context_length) - (self.total_tokens % self.context_length == 1), 0)

    def first(self, rows: int) -> SequenceDataset:
        """The documents that fill the first so many rows, and no more rows than these."""
        if len(self) <= rows:
            return self
        tokens = rows * self.context_length
        documents = int((self.ends < tokens).sum()) + 1 if self.packing else rows
        index = self.index.select(np.arange(documents))
        part = SequenceDataset(index, self.context_length, self.packing, self.pad_token_id)
        if self.packing:
            part.total_tokens = min(part.total_tokens, tokens)
        return part

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        if not 0 <= row < len(self) and row != NOTHING:
            raise IndexError(row)
        T = self.context_length
        tokens = np.full(T, self.pad_token_id, np.int64)
        documents = np.full(T, PADDING, np.int64)
        answers = np.zeros(T, bool)
        begin = end = first = 0
        if row != NOTHING and self.packing:
            begin, end = row * T, min((row + 1) * T, self.total_tokens)
            first = int(np.searchsorted(self.ends, begin, side="right"))
        elif row != NOTHING:
            begin, first = int(self.ends[row] - self.lengths[row]), row
            end = min(begin + T, int(self.ends[row]))
        at, place = begin, first
        while at < end:  # the documents in this row
            stop = min(end, int(self.ends[place]))
            store, inside = self.index.where(place)
            skipped = inside.start + at - int(self.ends[place] - self.lengths[place])
            part, here = slice(skipped, skipped + stop - at), slice(at - begin, stop - begin)
            tokens[here], answers[here], documents[here] = store.tokens[part], store.answers[part], place - first
            at, place = stop, place + 1
        return {
            "input_ids": torch.from_numpy(tokens),
            "document_ids": torch.from_numpy(documents),
            "answer_mask": torch.from_numpy(answers),
            "sequence_id": torch.tensor(row),
        }


def pad_token_id(tokenizer: Any) -> int:
    """What stands in the place of padding. Which one does not matter: padding is known by position, never by value."""
    given = [getattr(tokenizer, "pad_token_id", None), getattr(tokenizer, "eos_token_id", None), 0]
    return next(token for token in given if token is not None)


def end_token_ids(tokenizer: Any, completions_end: bool) -> Tensor | None:
    """What ends a completion, on the host: layouts need it there. None if nothing does."""
    return torch.tensor([tokenizer.eos_token_id]) if tokenizer is not None and completions_end else None


@dataclass(frozen=True)
class OnHost:
    """What layouts are built from. It has no `to`: nothing moves it to a GPU, and layouts need not wait for one."""

    document_ids: Tensor
    answer_mask: Tensor
    input_ids: Tensor

    @classmethod
    def joined(cls, parts: Sequence[OnHost]) -> OnHost:
        return cls(*(torch.cat([getattr(part, f.name) for part in parts]) for f in fields(cls)))


def to_device(batch: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """The batch's tensors on the device; what is on the host stays there."""
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in batch.items()}


def collate(rows: Sequence[dict[str, Tensor]]) -> dict[str, Any]:
    batch: dict[str, Any] = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    return {**batch, "on_host": OnHost(batch["document_ids"], batch["answer_mask"], batch["input_ids"])}


class PartOfBatches(BatchSampler):
    """One process's part of every global micro-batch of `batch_size` x processes rows.

    Global batches are consecutive stretches of one order that all processes know. The rows of a short last one are
    split as evenly as they go, and filled up with NOTHING, so that all make the same number of passes of the same size
    and no row is seen twice. (accelerate would fill up with rows from the start of the epoch, which then count twice.)

    full: batches all have `batch_size` rows.
    """

    def __init__(
        self, sampler: Sampler[int], batch_size: int, process: int, of: int, drop_last: bool, full: bool = False
    ) -> None:
        super().__init__(sampler, batch_size, drop_last)
        self.process, self.of, self.full = process, of, full
        self._global = BatchSampler(sampler, batch_size * of, drop_last)

    def set_epoch(self, epoch: int) -> None:
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self._global)

    def __iter__(self) -> Iterator[list[int]]:
        for rows in self._global:
            part = part_of(rows, self.process, self.of)
            yield filled_up(part, self.batch_size) if self.full else part


def part_of(rows: Sequence[int], process: int, of: int) -> list[int]:
    share = -(-len(rows) // of)
    return filled_up(rows[process * share : (process + 1) * share], share)


def filled_up(rows: Sequence[int], number: int) -> list[int]:
    return [*rows, *[NOTHING] * (number - len(rows))]


def compiles_for_sizes(config: Any) -> bool:
    """On a GPU code is compiled for every size of a batch: half a minute for a short last one, more than it takes to
    compute rows of nothing."""
    return bool(config.device.type == "cuda")


def train_loader(config: Any, dataset: Any) -> DataLoader:
    """This process's part of the very batches, in the very order, that one process would take."""
    if config.train_sampling_strategy not in SAMPLING_STRATEGIES:
        raise ConfigError(
            f"train_sampling_strategy={config.train_sampling_strategy!r} does not work on several processes; use "
            + " or ".join(SAMPLING_STRATEGIES)
        )
    order: Any = SequentialSampler(dataset)
    if config.train_sampling_strategy == "random":
        order = SeedableRandomSampler(dataset, data_seed=config.data_seed)  # as accelerate has it in one process
    size, drop_last = config.per_device_train_batch_size, config.dataloader_drop_last
    batches = PartOfBatches(
        order, size, processes.rank(), processes.count(), drop_last, full=compiles_for_sizes(config)
    )
    loader: DataLoader = DataLoader(
        dataset,
        batch_sampler=batches,
        collate_fn=collate,
        num_workers=config.dataloader_num_workers,
        pin_memory=config.dataloader_pin_memory,
        persistent_workers=config.dataloader_persistent_workers,
        prefetch_factor=config.dataloader_prefetch_factor,
    )
    # The batches are split already: for accelerate, which puts them on the device, there is one process.
    return prepare_data_loader(loader, config.device, num_processes=1, process_index=0, put_on_device=True)


def evaluation_loader(config: Any, dataset: Any) -> DataLoader:
    """Every k-th row for each of k processes (`join_rows` puts them together), the same number for all of them."""
    share, at_once = -(-len(dataset) // processes.count()), config.per_device_eval_batch_size
    if compiles_for_sizes(config):
        share = -(-share // at_once) * at_once
    rows: Any = filled_up(range(processes.rank(), len(dataset), processes.count()), share)
    return DataLoader(dataset, at_once, sampler=rows, collate_fn=collate)
