"""Compiled models and packed layouts that cross blocks of attention, for a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ebft.method.layout import StridedLayout
from ebft.model.backbone import (
    compile_layers,
    copy_in_dtype,
    decoder_of,
    output_head,
    packed_hidden_states,
    prepare_model,
)
from tests.models import VOCABULARY, tiny_model

T = 200  # more than one block of attention


def documents(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    changes = torch.rand(2, T, generator=generator) < 0.02
    ids = changes.long().cumsum(1)
    ids[1, 180:] = -1
    return ids


def layout(seed: int) -> StridedLayout:
    return StridedLayout(T, 5, 4, 3, document_ids=documents(seed), fixed_shape=True)


def some_ids(seed: int) -> Tensor:
    return torch.randint(VOCABULARY, (2, T), generator=torch.Generator().manual_seed(seed))


def compiled_model(family: str, dtype: torch.dtype = torch.float32, head: int = 32) -> Any:
    return compiled_copy(tiny_model(family, hidden_size=128, head_dim=head), dtype)


def compiled_copy(model: Any, dtype: torch.dtype) -> Any:
    copied, _ = copy_in_dtype(model.cuda(), dtype)
    prepare_model(copied)
    compile_layers(decoder_of(copied))
    return copied


def plain_copy(compiled: Any) -> Any:
    """In float32, with nothing compiled: the weights are as rounded, so that only the computation differs."""
    reference, _ = copy_in_dtype(compiled, torch.float32)
    for layer in decoder_of(reference).layers:
        layer.__class__ = type(layer).__mro__[1]
    return reference


def packed_ids(seed: int) -> Tensor:
    return layout(seed).pack(some_ids(seed), torch.randint(VOCABULARY, (2, layout(seed).num_anchors, 3, 5))).cuda()


def log_probs_of(model: Any, packed: Tensor, seed: int, backend: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """And the gradients of some loss, by weight."""
    model.zero_grad()
    hidden = packed_hidden_states(model, packed, layout(seed), backend)
    weights = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(9)).to(hidden.device)
    (hidden.float() * weights).mean().backward()
    with torch.no_grad():
        logits = output_head(model).logits(hidden.flatten(0, 1))
    return logits.log_softmax(-1), {name: p.grad.float() for name, p in model.named_parameters() if p.grad is not None}


def error(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())
