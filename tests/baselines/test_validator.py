from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("trl")
from ebft.baselines.validator import Validator
from tests.tiny_tokenizer import byte_tokenizer
from tests.train.small_runs import config, counting_text, small_model


def test_a_bf16_copy_is_kept_and_follows_the_model(tmp_path: Path) -> None:
    """The same modules at every validation, so that their graphs are; with the weights of now."""
    model, data = small_model(), counting_text(documents=2)
    settings = config(tmp_path, bf16=True)
    validator = Validator(model, settings, data, byte_tokenizer(), torch.device("cpu"))
    first = validator.measure(model)
    copy = validator._compute_model(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    moved = validator.measure(model)
    assert validator._compute_model(model) is copy
    assert moved != first
    anew = Validator(small_model(), settings, data, byte_tokenizer(), torch.device("cpu"))
    assert anew.measure(model) == moved
