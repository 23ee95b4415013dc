"""Checkpoints of a sharded model, in a group of one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from ebft.runtime import sharded_checkpoints
from tests.models import tiny_model
from tests.runtime.sharded_models import sharded

pytestmark = pytest.mark.usefixtures("group")


def test_a_sharded_checkpoint_fills_an_ordinary_model(tmp_path: Any) -> None:
    plain = tiny_model("qwen2")  # its head is its embeddings
    model = sharded(plain)
    sharded_checkpoints.save(tmp_path / sharded_checkpoints.MODEL, sharded_checkpoints.weights(model))
    other = tiny_model("qwen2")
    for parameter in other.parameters():
        torch.nn.init.zeros_(parameter)
    sharded_checkpoints.load_whole(tmp_path, other.to(torch.bfloat16))
    for name, value in plain.named_parameters():
        assert torch.equal(other.get_parameter(name), value.to(torch.bfloat16)), name


def test_errors_of_a_checkpoint_are_plain_ones(tmp_path: Any) -> None:
    words = "nowhere" if torch.__version__ >= "2.13" else "metadata is None"
    with pytest.raises((OSError, AssertionError), match=words) as found:
        sharded_checkpoints.load(tmp_path / "nowhere", {"a": torch.zeros(2)})
    assert not isinstance(found.value, dist.checkpoint.CheckpointException)
