"""Small packed batches, a loss of their hidden states, and features of plain sequences to compare with."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ebft.method.layout import StridedLayout
from ebft.model.backbone import packed_hidden_states
from ebft.model.features import FeatureNetwork
from tests.models import VOCABULARY
from tests.plain import plain_hidden_states

T = 20
DOCUMENTS = torch.tensor([[0] * 9 + [1] * 11, [0] * 17 + [-1] * 3])
LAYOUT = StridedLayout(16, 3, 4, 2)


def some_packed(seed: int = 0) -> Tensor:
    return torch.randint(VOCABULARY, (2, LAYOUT.packed_length), generator=torch.Generator().manual_seed(seed))


def some_loss(model: nn.Module, ids: Tensor) -> Tensor:
    hidden = packed_hidden_states(model, ids, LAYOUT).float()
    return (hidden * torch.randn(hidden.shape, generator=torch.Generator().manual_seed(9))).mean()


def phi(plain: nn.Module, sequence: Tensor, length: int, taps: tuple[int, ...], network: FeatureNetwork) -> Tensor:
    """Of a plain sequence whose last `length` tokens are the completion."""
    states = plain_hidden_states(plain, sequence)
    pooled = [states[t][-1] if network.pooling == "last" else states[t][-length:].mean(0) for t in taps]
    if network.normalize == "per_layer":
        return torch.cat([x / x.norm() for x in pooled])
    return torch.cat(pooled) / torch.cat(pooled).norm()
