"""Marks that tell networks apart by their weights."""

from __future__ import annotations

import copy

import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from ebft.model.features import FeatureNetwork, feature_space, weight_fingerprint
from tests.models import tiny_model


def test_feature_spaces_are_told_apart() -> None:
    model = tiny_model("llama")
    mine = feature_space(FeatureNetwork(model), "a")
    assert feature_space(FeatureNetwork(copy.deepcopy(model)), "b") == {**mine, "model": "b"}
    rounded = copy.deepcopy(model).bfloat16()
    assert feature_space(FeatureNetwork(rounded), "a") == mine, "one checkpoint in two precisions is one space"
    assert feature_space(FeatureNetwork(tiny_model("llama", seed=1)), "a")["weights"] != mine["weights"]
    assert feature_space(FeatureNetwork(model, layers=[0.5]), "a")["taps"] != mine["taps"]


def test_fingerprints_depend_on_weights_and_their_names_alone() -> None:
    model = tiny_model("llama")
    mark = weight_fingerprint(model)
    assert weight_fingerprint(copy.deepcopy(model).train()) == mark
    assert len(mark) == 16
    for name in ("model.layers.3.mlp.up_proj.weight", "model.norm.weight"):
        changed = copy.deepcopy(model)
        with torch.no_grad():
            changed.get_parameter(name).mul_(1.1)
        assert weight_fingerprint(changed) != mark, name
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    swapped = nn.ModuleDict({"a": second, "b": first})
    assert weight_fingerprint(nn.ModuleDict({"a": first, "b": second})) != weight_fingerprint(swapped)


def test_an_adapter_does_not_count() -> None:
    model = tiny_model("llama")
    mark = weight_fingerprint(model.model)
    config = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    adapted = get_peft_model(copy.deepcopy(model), config)
    assert weight_fingerprint(adapted.get_base_model().model) == mark
