"""Telling networks apart by some of every weight, without reading gigabytes."""

from __future__ import annotations

import hashlib
from typing import Any

from torch import nn

from ebft.model.backbone import adapter_parameters
from ebft.model.features import FeatureNetwork
from ebft.runtime.sharding import whole

_SHOWN = 64  # of every weight, about so many numbers


def weight_fingerprint(network: nn.Module) -> str:
    """The same for the same weights in any precision, sharded or not, with an adapter on top or without."""
    mark, adapter = hashlib.sha256(), adapter_parameters(network)
    for name, parameter in network.named_parameters():
        if id(parameter) in adapter:  # off when features are computed
            continue
        values = whole(parameter.detach()).flatten()
        # In bf16, so that one checkpoint loaded in two precisions has one mark.
        some = values[:: max(1, len(values) // _SHOWN)].bfloat16().float().cpu().numpy()
        mark.update(name.replace(".base_layer", "").replace(".original_module", "").encode() + some.tobytes())
    return mark.hexdigest()[:16]


def feature_space(features: FeatureNetwork, name: str) -> dict[str, Any]:
    """What says whether two evaluations looked at their models in the same space."""
    return {
        "model": name,
        "taps": list(features.taps),
        "pooling": features.pooling,
        "normalize": features.normalize,
        "weights": weight_fingerprint(features.decoder),
    }
