"""Recipes for the tests of settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ebft.config.recipe import Recipe, load_recipe
from ebft.errors import ConfigError

NEEDED = {"model": "some-model", "dataset": "rows.jsonl", "output_dir": "out", "use_cpu": True}


def load(yaml: str | None = None, folder: Path | None = None, **overrides: Any) -> Recipe:
    file = None
    if yaml is not None:
        assert folder is not None
        file = folder / "recipe.yaml"
        file.write_text(yaml)
    return load_recipe(file, {**NEEDED, **overrides})


def refuse(name: str, value: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load(**{name: value})
    message = str(caught.value)
    assert "\n" not in message
    return message
