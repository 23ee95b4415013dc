"""What is trained on what: settings that do not go together."""

from __future__ import annotations

import pytest

from ebft.config.model_and_data import ModelConfig
from ebft.errors import ConfigError


def test_settings_that_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="exclude each other"):
        ModelConfig(model="x", lora=True, peft={"r": 4})
    with pytest.raises(ConfigError, match="set lora=true or peft"):
        ModelConfig(model="x", load_in_4bit=True)
