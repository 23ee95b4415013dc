"""Models that are sharded over a group of one: all of the machinery, and nothing to wait for."""

from __future__ import annotations

import copy
from typing import Any

import torch

from ebft.model.backbone import decoder_layers, decoder_of, prepare_model
from ebft.runtime import sharding

CPU = torch.device("cpu")


def sharded(model: Any, dtype: torch.dtype | None = None) -> Any:
    prepare_model(model)
    model = copy.deepcopy(model)
    decoder = decoder_of(model)
    group = sharding.ShardGroup(CPU, 1, dtype)
    sharding.shard_model(model, decoder, decoder_layers(decoder)[1], group, reshard=True)
    return model
