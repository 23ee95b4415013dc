"""Marks that tell networks apart by their weights."""

from __future__ import annotations

import copy

from ebft.model.features import FeatureNetwork
from ebft.model.fingerprint import feature_space
from tests.models import tiny_model


def test_feature_spaces_are_told_apart() -> None:
    model = tiny_model("llama")
    mine = feature_space(FeatureNetwork(model), "a")
    assert feature_space(FeatureNetwork(copy.deepcopy(model)), "b") == {**mine, "model": "b"}
    rounded = copy.deepcopy(model).bfloat16()
    assert feature_space(FeatureNetwork(rounded), "a") == mine, "one checkpoint in two precisions is one space"
    assert feature_space(FeatureNetwork(tiny_model("llama", seed=1)), "a")["weights"] != mine["weights"]
    assert feature_space(FeatureNetwork(model, layers=[0.5]), "a")["taps"] != mine["taps"]
