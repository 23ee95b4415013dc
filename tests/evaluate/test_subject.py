"""What a task is run on; the other files here have whole evaluations."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ebft.config.evaluation import EvalOptions
from ebft.errors import ConfigError
from ebft.evaluate.subject import CheckpointSubject, device_and_dtype

pytestmark = pytest.mark.usefixtures("offline")


def test_devices() -> None:
    assert device_and_dtype("cpu", "auto") == (torch.device("cpu"), torch.float32)
    assert device_and_dtype("cpu", "bfloat16") == (torch.device("cpu"), torch.bfloat16)
    for wrong in ("gpu", *([] if torch.cuda.is_available() else ["cuda:1"])):
        with pytest.raises(ConfigError, match=f"device='{wrong}': "):
            device_and_dtype(wrong, "auto")


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
