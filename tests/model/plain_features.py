"""Features of plain sequences, which those of packed ones are compared with."""

from __future__ import annotations

import torch
from torch import Tensor

from ebft.method.layout import PackedLayout
from tests.models import VOCABULARY
from tests.plain import Place, plain_hidden_states

T = 20


def some_batch(layout: PackedLayout, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (2, layout.num_anchors, layout.samples, layout.horizon)
    return torch.randint(VOCABULARY, (2, T), generator=generator), torch.randint(VOCABULARY, shape, generator=generator)


def brute_force(
    plain: torch.nn.Module, sequence: Tensor, length: int, taps: tuple[int, ...], pooling: str, normalize: str
) -> Tensor:
    """phi of a plain sequence whose last `length` tokens are the completion."""
    states = plain_hidden_states(plain, sequence)
    pooled = [states[t][-1] if pooling == "last" else states[t][-length:].mean(0) for t in taps]
    if normalize == "per_layer":
        return torch.cat([x / x.norm() for x in pooled])
    return torch.cat(pooled) / torch.cat(pooled).norm()


def check(
    features: tuple[Tensor, Tensor],
    place: Place,
    expected: Tensor,
    expected_truth: Tensor,
    tolerance: float = 1e-5,
) -> None:
    generated, truth = features
    assert (generated[place.row, place.anchor_index, place.sample] - expected).abs().max() < tolerance
    assert (truth[place.row, place.anchor_index] - expected_truth).abs().max() < tolerance
