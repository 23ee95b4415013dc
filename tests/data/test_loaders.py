"""Which process gets which rows."""

from __future__ import annotations

import pytest
from accelerate.data_loader import SeedableRandomSampler
from torch.utils.data import BatchSampler, SequentialSampler

from ebft.data.loaders import NOTHING, PartOfBatches, part_of


@pytest.mark.parametrize("rows", range(1, 22))
@pytest.mark.parametrize("processes", [1, 2, 3, 4])
def test_an_epoch_has_every_row_once_on_all_processes_together(rows: int, processes: int) -> None:
    order = SeedableRandomSampler(range(rows), data_seed=3)
    parts = []
    for process in range(processes):
        batches = PartOfBatches(order, 2, process, processes, drop_last=False)
        batches.set_epoch(5)  # a sampler moves on by an epoch each time it is gone through
        parts.append(list(batches))
        assert len(parts[-1]) == len(batches)
    order.set_epoch(5)
    expected = list(BatchSampler(order, 2 * processes, drop_last=False))
    for number, together in enumerate(zip(*parts, strict=True)):
        assert len({len(part) for part in together}) == 1, "passes of the same size"
        assert [row for part in together for row in part if row != NOTHING] == expected[number]
    assert sorted(row for part in parts for batch in part for row in batch if row != NOTHING) == list(range(rows))


def test_drop_last_leaves_out_what_does_not_fill_a_batch() -> None:
    parts = [list(PartOfBatches(SequentialSampler(range(11)), 2, p, 2, drop_last=True)) for p in range(2)]
    assert parts == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]


def test_a_short_batch_is_split_evenly() -> None:
    assert [part_of([0, 1, 2, 3, 4], p, 4) for p in range(4)] == [[0, 1], [2, 3], [4, -1], [-1, -1]]


def test_full_batches_hold_the_same_rows() -> None:
    for processes in (1, 2, 3):
        for process in range(processes):
            plain, full = (
                list(PartOfBatches(SequentialSampler(range(11)), 3, process, processes, drop_last=False, full=full))
                for full in (False, True)
            )
            assert all(len(batch) == 3 for batch in full)
            assert [[row for row in batch if row != NOTHING] for batch in full] == [
                [row for row in batch if row != NOTHING] for batch in plain
            ]
