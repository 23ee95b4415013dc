"""Strategies to train a model, as `ebft plan` compares them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ebft.config.recipe import Recipe


@dataclass(frozen=True)
class Strategy:
    name: str
    adapter: bool = False  # train an adapter on a frozen base model
    sharded: bool = False  # weights, gradients and optimiser state sharded over the GPUs
    four_bit: bool = False  # the base model in 4 bits

    def title(self, gpus: int) -> str:
        """What people read: on one GPU nothing is parallel."""
        return "whole model" if gpus == 1 and self == DDP else self.name


DDP = Strategy("ddp")
FSDP2 = Strategy("fsdp2", sharded=True)
LORA = Strategy("lora", adapter=True)
LORA_FSDP2 = Strategy("lora+fsdp2", adapter=True, sharded=True)
QLORA = Strategy("qlora", adapter=True, four_bit=True)
STRATEGIES = (DDP, FSDP2, LORA, LORA_FSDP2, QLORA)


def strategy_of(recipe: Recipe) -> Strategy:
    """How the recipe trains."""
    sharded = recipe.training.sharding is not None
    if recipe.model.load_in_4bit:
        return QLORA
    if recipe.model.adapted:
        return LORA_FSDP2 if sharded else LORA
    return FSDP2 if sharded else DDP
