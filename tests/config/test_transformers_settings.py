"""What is read from the source of transformers is what importing it says."""

from __future__ import annotations

import typing
from dataclasses import MISSING, fields
from enum import Enum

from transformers import TrainingArguments

from ebft.config.transformers_settings import transformers_settings


def test_names_types_defaults_and_help() -> None:
    found, types = transformers_settings(), typing.get_type_hints(TrainingArguments)
    assert set(found) == {f.name for f in fields(TrainingArguments) if f.init}
    for f in fields(TrainingArguments):
        if f.init:
            setting = found[f.name]
            assert setting.type in (None, types[f.name]), f.name
            assert setting.help == f.metadata.get("help", ""), f.name
            if f.default is not MISSING and not isinstance(f.default, Enum):
                assert setting.default in (f.default, None), f.name
    plain = {name for name, setting in found.items() if setting.type is not None}
    assert {"max_steps", "bf16", "seed", "output_dir", "eval_steps"} <= plain
    assert found["max_steps"].default == -1
