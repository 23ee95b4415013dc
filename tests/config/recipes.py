"""A recipe in memory, for tests of settings."""

from __future__ import annotations

from typing import Any

from ebft.config.recipe import Recipe, load_recipe

NEEDED = {"model": "some-model", "dataset": "rows.jsonl", "output_dir": "out", "use_cpu": True}


def load(**overrides: Any) -> Recipe:
    return load_recipe(None, {**NEEDED, **overrides})
