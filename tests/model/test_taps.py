"""Which hidden states are tapped, against those of plain sequences."""

from __future__ import annotations

import pytest
import torch.nn.functional as F
from torch import Tensor

from ebft.method.layout import StridedLayout
from ebft.model.features import FeatureNetwork
from ebft.model.taps import resolve_taps
from tests.model.plain_features import T, brute_force, check, some_batch
from tests.models import tiny_model
from tests.plain import places, plain_hidden_states, untouched


@pytest.mark.parametrize(
    ("layers", "taps"), [((0,), (0,)), ((1, 3), (1, 3)), ((0, 0.5, 2), (0, 2, 2)), ((0.0, 0.99), (0, 3))]
)
def test_taps(layers: tuple[float, ...], taps: tuple[int, ...]) -> None:
    model = tiny_model()
    layout = StridedLayout(T, 3, 4, 2)
    ids, completions = some_batch(layout)
    network = FeatureNetwork(model, layers=layers)
    assert network.taps == taps
    features = network(layout.pack(ids, completions), layout)
    plain = untouched(model)
    for place in places(ids, completions, layout):
        expected, expected_truth = (
            brute_force(plain, s, 3, taps, "last", "per_layer") for s in (place.sequence, place.truth_sequence)
        )
        check(features, place, expected, expected_truth)


def test_a_tap_of_the_last_layer_is_taken_before_the_final_norm() -> None:
    model = tiny_model()
    layout = StridedLayout(T, 3, 4, 2)
    ids, completions = some_batch(layout)
    _, truth = FeatureNetwork(model, layers=(4,))(layout.pack(ids, completions), layout)
    before_norm: list[Tensor] = []
    plain = untouched(model)
    plain.model.norm.register_forward_pre_hook(lambda _, args: before_norm.append(args[0][0, -1]))
    plain_hidden_states(plain, ids[0, : int(layout.anchors[0]) + 3])
    assert (truth[0, 0] - F.normalize(before_norm[0], dim=-1)).abs().max() < 1e-5


def test_fractions_follow_the_paper() -> None:
    assert resolve_taps((0.25, 0.5, 0.75), 28) == (7, 14, 21)
    assert resolve_taps((0.25, 0.5, 0.75), 30) == (7, 15, 22)
    assert resolve_taps((0.25, 0.5, 0.75), 2) == (0, 1, 1)
    assert resolve_taps((1.0, 1), 6) == (6, 1)


def test_nothing_above_the_highest_tap_is_kept_or_run() -> None:
    model = tiny_model()
    ran = []
    for index, layer in enumerate(model.model.layers):
        layer.register_forward_hook(lambda *_, index=index: ran.append(index))
    network = FeatureNetwork(model, layers=(1, 2), source="shared")
    ran.clear()
    layout = StridedLayout(T, 3, 4, 2)
    network(layout.pack(*some_batch(layout)), layout)
    assert ran == [0, 1]
    copied = FeatureNetwork(model, layers=(1, 2))
    kept = sum(p.numel() for p in copied.parameters())
    whole = sum(p.numel() for p in model.parameters())
    per_layer = sum(p.numel() for p in model.model.layers[0].parameters())
    assert kept == whole - 2 * per_layer - model.lm_head.weight.numel()
