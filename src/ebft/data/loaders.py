"""Which rows of a batch each process takes: the very batches, in the very order, that one process would take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from accelerate.data_loader import SeedableRandomSampler, prepare_data_loader
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, Sampler, SequentialSampler

from ebft.data.packing import PADDING, SequenceDataset, collate
from ebft.errors import ConfigError
from ebft.runtime import processes

NOTHING = -1  # a row that is not there: only padding, no anchors, no truth tokens


class PartOfBatches(BatchSampler):
    """One process's part of every global micro-batch of `batch_size` x processes rows.

    Global batches are consecutive stretches of one order that all processes know, as one process would take them.
    The rows of a short last one are split as evenly as they go; where there is none left for a process it gets
    NOTHING, so that all make the same number of passes of the same size and no row is seen twice. (accelerate would
    fill up with rows from the start of the epoch, which then count twice.)

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


class WithNothing(Dataset[dict[str, Tensor]]):
    """A dataset that also has the row NOTHING."""

    def __init__(self, dataset: SequenceDataset) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        if row != NOTHING:
            return self.dataset[row]
        T = self.dataset.context_length
        return {
            "input_ids": torch.full((T,), self.dataset.pad_token_id, dtype=torch.long),
            "document_ids": torch.full((T,), PADDING, dtype=torch.long),
            "answer_mask": torch.zeros(T, dtype=torch.bool),
            "sequence_id": torch.tensor(NOTHING),
        }


SAMPLING_STRATEGIES = ("random", "sequential")


def train_loader(config: Any, dataset: Any) -> DataLoader:
    """This process's part of the very batches, in the very order, that one process would take."""
    order: Any
    if config.train_sampling_strategy == "random":
        order = SeedableRandomSampler(dataset, data_seed=config.data_seed)  # as accelerate has it in one process
    elif config.train_sampling_strategy == "sequential":
        order = SequentialSampler(dataset)
    else:
        raise ConfigError(
            f"train_sampling_strategy={config.train_sampling_strategy!r} does not work on several processes; use "
            + " or ".join(SAMPLING_STRATEGIES)
        )
    batches = PartOfBatches(
        order,
        config.per_device_train_batch_size,
        processes.rank(),
        processes.count(),
        drop_last=config.dataloader_drop_last,
        full=compiles_for_sizes(config),
    )
    loader: DataLoader = DataLoader(
        WithNothing(dataset),
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
    return DataLoader(WithNothing(dataset), at_once, sampler=rows, collate_fn=collate)
