"""Sizes that depend on the data, which the host has to know: in few steps, since graphs and code are made for each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# Up to a sixteenth of the largest, in whole blocks.
_STEPS, _BLOCK = 16, 128


def rounded_up(size: int, largest: int) -> int:
    step = -(-largest // (_STEPS * _BLOCK)) * _BLOCK
    return -(-max(size, 1) // step) * step


def ask(counts: Sequence[Tensor]) -> list[list[int]]:
    """The device's numbers, for the host. It waits for them."""
    return torch.stack(list(counts)).tolist()
