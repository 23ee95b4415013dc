"""Mixtures of experts: which parameters of a layer are experts, and how many of them a token meets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from ebft.errors import ConfigError

# How configurations name the number of experts that a token goes to.
_CHOSEN = ("num_experts_per_tok", "moe_topk", "top_k_experts")


def expert_modules(module: nn.Module) -> Iterator[Any]:
    """The modules that hold experts: transformers stacks the matrices of all experts of a layer, [experts, out, in]."""
    for part in module.modules():
        if hasattr(part, "num_experts") and any(p.dim() == 3 for p in part.parameters(recurse=False)):
            yield part


def experts_per_token(config: Any, experts: int) -> int:
    """To how many of so many experts a token goes, by the configuration of the decoder."""
    name, chosen = next(((n, getattr(config, n)) for n in _CHOSEN if hasattr(config, n)), (_CHOSEN[0], None))
    if isinstance(chosen, list) and chosen:
        chosen = max(chosen)  # HunYuan's has one for every layer
    if not isinstance(chosen, int) or not 1 <= chosen <= experts:
        raise ConfigError(f"config.json: {name}={chosen} must be a whole number from 1 to the {experts} experts")
    return chosen


def idle_parameters(module: nn.Module, config: Any) -> int:
    """Parameters that a token does not meet, those of the experts it does not go to."""
    idle = 0
    for held in expert_modules(module):
        experts = held.num_experts
        each = sum(p.numel() for p in held.parameters(recurse=False)) // experts
        idle += each * (experts - experts_per_token(config, experts))
    return idle
