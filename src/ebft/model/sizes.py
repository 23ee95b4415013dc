"""Sizes that depend on the data, in few steps: a GPU's code is compiled for each."""

from __future__ import annotations

# Up to a sixteenth of the largest, in whole blocks.
_STEPS, _BLOCK = 16, 128


def rounded_up(size: int, largest: int) -> int:
    step = -(-largest // (_STEPS * _BLOCK)) * _BLOCK
    return -(-max(size, 1) // step) * step
