"""Compiled models and packed layouts that cross blocks of attention, for a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ebft.method.layout import StridedLayout
from ebft.model.backbone import compile_layers, decoder_of, prepare_model
from ebft.model.working_copy import copy_in_dtype
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
    model, _ = copy_in_dtype(tiny_model(family, hidden_size=128, head_dim=head).cuda(), dtype)
    prepare_model(model)
    compile_layers(decoder_of(model))
    return model
