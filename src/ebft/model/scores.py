"""Attention scores: what a layer asks of them beyond who sees whom."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ScoreRule:
    """Scale, sliding window and soft-cap of one layer."""

    scale: float
    window: int | None
    softcap: float | None

    def scores(self, products: Tensor) -> Tensor:
        scores = products.to(torch.promote_types(products.dtype, torch.float32)) * self.scale
        return self.softcap * torch.tanh(scores / self.softcap) if self.softcap is not None else scores
