"""A small packed batch and a loss of its hidden states."""

from __future__ import annotations

import torch
from torch import nn

from ebft.method.layout import StridedLayout
from ebft.model.backbone import packed_hidden_states
from tests.models import VOCABULARY

LAYOUT = StridedLayout(16, 3, 4, 2)


def some_packed(seed: int = 0) -> torch.Tensor:
    return torch.randint(VOCABULARY, (2, LAYOUT.packed_length), generator=torch.Generator().manual_seed(seed))


def some_loss(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    hidden = packed_hidden_states(model, ids, LAYOUT).float()
    return (hidden * torch.randn(hidden.shape, generator=torch.Generator().manual_seed(9))).mean()
