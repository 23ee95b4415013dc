"""What a task is run on; tests/evaluate has whole evaluations."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ebft.config.evaluation import EvalOptions
from ebft.errors import ConfigError
from ebft.tasks.subject import CheckpointSubject, resolve_device

pytestmark = pytest.mark.usefixtures("offline")


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == resolve_device("cpu") == torch.device("cpu")
    with pytest.raises(ConfigError, match="device='cuda:1': torch finds no CUDA device; use --device cpu"):
        resolve_device("cuda:1")
    with pytest.raises(ConfigError, match="device='gpu' is not a device"):
        resolve_device("gpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolve_device("auto") == torch.device("cuda")


def test_a_checkpoint_is_loaded_when_it_is_needed_and_measured_by_itself(tiny: Path) -> None:
    options = EvalOptions.from_values({"model": [str(tiny)], "device": "cpu", "feature_layers": [0.5]})
    subject = CheckpointSubject(str(tiny), options)
    assert not {"model", "tokenizer", "features", "generator"} & vars(subject).keys()
    assert subject.describe()["dtype"] == "float32"
    assert subject.features.source == "shared", "the weights are here already"
    assert subject.features.taps == (1,)
    assert subject.feature_name == str(tiny)
    model = subject.model
    subject.unload()
    assert "model" not in vars(subject)
    assert subject.model is not model


def test_precision_counts_for_resuming(tiny: Path) -> None:
    identities = [
        CheckpointSubject(str(tiny), EvalOptions.from_values({"dtype": dtype, "device": "cpu"})).identity
        for dtype in ("auto", "float32", "bfloat16")
    ]
    assert identities[0] == identities[1] != identities[2]
