"""Experts are found wherever transformers puts them, and a token meets as many as the configuration says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ebft.errors import ConfigError
from ebft.model.backbone import expert_modules, experts_per_token, idle_parameters
from tests.models import MIXTURES, tiny_model


@pytest.mark.parametrize("family", MIXTURES)
def test_idle_parameters_are_those_of_the_other_experts(family: str) -> None:
    model = tiny_model(family)
    by_name = {n for n, p in model.named_parameters() if ".experts." in n}
    held = list(expert_modules(model))
    assert sum(1 for part in held for _ in part.parameters()) == len(by_name)
    experts = sum(p.numel() for n, p in model.named_parameters() if n in by_name)
    number = held[0].num_experts
    assert idle_parameters(model, model.config) == experts * (number - 2) / number


def test_a_dense_model_has_none() -> None:
    model = tiny_model("llama")
    assert list(expert_modules(model)) == []
    assert idle_parameters(model, model.config) == 0


@pytest.mark.parametrize(
    ("config", "chosen"),
    [
        ({"num_experts_per_tok": 2}, 2),
        ({"moe_topk": [1, 3, 3]}, 3),  # HunYuan: one for every layer
        ({"top_k_experts": 4}, 4),  # Gemma 4
    ],
)
def test_configurations_name_the_number_in_several_ways(config: dict[str, Any], chosen: int) -> None:
    assert experts_per_token(SimpleNamespace(**config), 4) == chosen


@pytest.mark.parametrize("config", [{}, *({"num_experts_per_tok": n} for n in (0, 5, None, "two", []))])
def test_a_number_that_cannot_be_is_said_in_one_line(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"num_experts_per_tok=.* must be a whole number from 1 to the 4 experts$"):
        experts_per_token(SimpleNamespace(**config), 4)
