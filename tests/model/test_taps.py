"""Which hidden states are tapped, against those of plain sequences."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ebft.method.layout import StridedLayout
from ebft.model.backbone import decoder_layers, decoder_of
from ebft.model.features import FeatureNetwork, cut_decoder, random_like, resolve_taps, tapped_states
from tests.model.plain_features import T, brute_force, check, some_batch
from tests.models import FAMILIES, tiny_model
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


@pytest.mark.parametrize("family", FAMILIES)
def test_a_cut_decoder_gives_the_hidden_states_below_the_cut(family: str) -> None:
    """It shares its weights with the whole one, which stays whole."""
    model = tiny_model(family)
    decoder, ids = decoder_of(model), some_batch(StridedLayout(T, 3, 4, 2))[0]
    with torch.no_grad():
        expected = decoder(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states
        cut = cut_decoder(decoder, 2)
        found = cut(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states
    assert (len(expected), len(found)) == (5, 3)
    for mine, whole in zip(found[:2], expected, strict=False):  # the last one is after the final norm
        assert torch.equal(mine, whole)
    assert {id(p) for p in cut.parameters()} < {id(p) for p in decoder.parameters()}
    assert len(decoder_layers(cut_decoder(decoder, 0))[1]) == 1, "at least one layer stays"
    assert len(decoder_layers(decoder)[1]) == 4


def test_tapped_states_are_the_rows_that_were_asked_for() -> None:
    decoder = decoder_of(tiny_model())
    ids = some_batch(StridedLayout(T, 3, 4, 2))[0]
    rows = torch.randint(T, (2, 3, 4), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        states = decoder(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states
        tokens = rows + torch.arange(2)[:, None, None] * T  # counted over both rows of the batch
        with tapped_states(decoder, (0, 2, 2), [tokens, tokens[:, :1]]) as found:
            decoder(input_ids=ids, use_cache=False)
        kept = {tap: [value.clone() for value in values] for tap, values in found.items()}
        decoder(input_ids=ids.flip(1), use_cache=False)
    assert found.keys() == {0, 2}
    for tap, (chosen, first) in found.items():
        for b, r, m in itertools.product(range(2), range(3), range(4)):
            torch.testing.assert_close(chosen[b, r, m], states[tap][b, rows[b, r, m]])
        assert torch.equal(first, chosen[:, :1])
        assert torch.equal(chosen, kept[tap][0]), "the hooks are gone after the block"


def test_random_weights_have_the_shape_and_leave_the_generator_alone() -> None:
    decoder = decoder_of(tiny_model())
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    fresh = random_like(decoder, seed=1)
    assert torch.equal(torch.random.get_rng_state(), before)
    shapes = {name: p.shape for name, p in decoder.named_parameters()}
    assert {name: p.shape for name, p in fresh.named_parameters()} == shapes
    name = "layers.0.mlp.up_proj.weight"
    assert not torch.equal(fresh.get_parameter(name), decoder.get_parameter(name))
    assert torch.equal(fresh.get_parameter(name), random_like(decoder, seed=1).get_parameter(name))
