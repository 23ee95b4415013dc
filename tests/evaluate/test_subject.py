"""What a task is run on; the other files here have whole evaluations."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ebft.config.evaluation import EvalOptions
from ebft.errors import ConfigError
from ebft.evaluate.subject import CheckpointSubject, device_and_dtype

pytestmark = pytest.mark.usefixtures("offline")


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_and_dtype("auto", "auto") == (torch.device("cpu"), torch.float32)
    for wrong, message in ("cuda:1", "torch finds no CUDA device; use --device cpu"), ("gpu", "is not a device"):
        with pytest.raises(ConfigError, match=f"device='{wrong}'.*{message}"):
            device_and_dtype(wrong, "auto")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert device_and_dtype("auto", "auto") == (torch.device("cuda"), torch.bfloat16)


def test_a_checkpoint_is_loaded_when_it_is_needed_and_measured_by_itself(tiny: Path) -> None:
    options = EvalOptions.from_values({"model": [str(tiny)], "device": "cpu", "feature_layers": [0.5]})
    subject = CheckpointSubject(str(tiny), options)
    assert not {"model", "tokenizer", "features", "generator"} & vars(subject).keys()
    assert (subject.features.source, subject.features.taps) == ("shared", (1,)), "the weights are here already"
    assert subject.feature_name == str(tiny)
    model = subject.model
    subject.unload()
    assert "model" not in vars(subject)
    assert subject.model is not model
    identities = [
        CheckpointSubject(str(tiny), EvalOptions.from_values({"dtype": dtype, "device": "cpu"})).identity
        for dtype in ("auto", "float32", "bfloat16")
    ]
    assert subject.identity == identities[0] == identities[1] != identities[2], "precision counts for resuming"
