"""Sizes that depend on the data, which the host has to know: in few steps, since a GPU's code is compiled for each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_BLOCK = 128


def rounded_up(size: int, largest: int, steps: int) -> int:
    """To one of so many parts of the largest, in whole blocks."""
    step = -(-largest // (steps * _BLOCK)) * _BLOCK
    return -(-max(size, 1) // step) * step


def ask(counts: Sequence[Tensor]) -> list[list[int]]:
    """The device's numbers, for the host. It waits for them."""
    return torch.stack(list(counts)).tolist()
