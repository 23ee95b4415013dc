"""Which strategy a recipe itself trains by, as `ebft plan` says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ebft.config.recipe import load_recipe
from ebft.planning.strategies import strategy_of
from tests.baselines.runs import write_recipe


@pytest.mark.parametrize(
    ("settings", "strategy"),
    [
        ({}, "ddp"),
        ({"lora": True}, "lora"),
        ({"peft": {"r": 2}}, "lora"),
        ({"lora": True, "load_in_4bit": True}, "qlora"),
        ({"fsdp": "full_shard"}, "fsdp2"),
        ({"lora": True, "fsdp": "full_shard"}, "lora+fsdp2"),
    ],
)
def test_how_the_recipe_itself_trains(
    settings: dict[str, Any], strategy: str, tiny: Path, sums: Path, tmp_path: Path
) -> None:
    recipe = load_recipe(write_recipe(tmp_path, tiny, sums, **settings), {"output_dir": "unused"})
    assert strategy_of(recipe).name == strategy
