import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ebft.method.layout import StridedLayout
from ebft.model.features import FeatureNetwork, weight_fingerprint
from tests.models import VOCABULARY, tiny_model
from tests.plain import DOCUMENTS, LAYOUT, T, phi, places, random_batch, some_packed, untouched
from tests.tiny_tokenizer import byte_tokenizer


def check_features(network: FeatureNetwork, plain: nn.Module, taps: Any, device: str, tolerance: float) -> None:
    """Of all completions and truths, against those of plain sequences."""
    layout = StridedLayout(T, 3, 4, 2, document_ids=DOCUMENTS)
    ids, completions = random_batch(layout)
    generated, truth = network(layout.pack(ids, completions).to(device), layout)
    assert generated.shape == (2, layout.num_anchors, layout.samples, network.width)
    assert truth.shape == (2, layout.num_anchors, network.width)
    for place in places(ids, completions, layout, DOCUMENTS):
        at = (place.row, place.anchor_index, place.sample)
        for found, sequence in (generated[at], place.sequence), (truth[at[:2]], place.truth_sequence):
            expected = phi(plain, sequence.to(device), layout.horizon, taps, network)
            assert (found - expected).abs().max() < tolerance


@pytest.mark.parametrize(("pooling", "normalize"), [("last", "per_layer"), ("mean", "joint")])
def test_features_equal_those_of_plain_sequences(
    family: str, pooling: str, normalize: str, device_and_backend: tuple[str, str], tolerance: float
) -> None:
    device, backend = device_and_backend
    model = tiny_model(family).to(device)
    plain, network = untouched(model), FeatureNetwork(model, pooling=pooling, normalize=normalize, backend=backend)
    check_features(network, plain, (1, 2, 3), device, tolerance)


class TestSources:
    def features(self, network: FeatureNetwork) -> Tensor:
        generated, truth = network(LAYOUT.pack(*random_batch(LAYOUT)), LAYOUT)
        return torch.cat([generated.flatten(), truth.flatten()])

    def test_a_copy_does_not_follow_the_model(self) -> None:
        model = tiny_model()
        network, shared = FeatureNetwork(model), FeatureNetwork(model, source="shared")
        before = self.features(network)
        assert torch.equal(before, self.features(shared))
        assert not any(p.requires_grad for p in network.parameters())
        assert all(p.requires_grad for p in model.parameters())
        assert list(shared.parameters()) == []
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
        assert torch.equal(before, self.features(network))
        assert not torch.equal(before, self.features(shared))

    def test_random_weights_depend_on_the_seed_alone(self) -> None:
        model = tiny_model()
        torch.manual_seed(5)
        first = self.features(FeatureNetwork(model, source="random", seed=1))
        following = torch.rand(1)
        torch.manual_seed(5)
        assert torch.equal(following, torch.rand(1))  # the global generator was not touched
        assert torch.equal(first, self.features(FeatureNetwork(tiny_model(seed=9), source="random", seed=1)))
        assert not torch.equal(first, self.features(FeatureNetwork(model, source="random", seed=2)))
        assert not torch.equal(first, self.features(FeatureNetwork(model)))

    def test_another_checkpoint_must_have_the_same_vocabulary(self, tmp_path: Path) -> None:
        """Embeddings padded to different sizes do not matter, the meaning of a token id does."""
        model, larger, tokenizer = tiny_model(), tiny_model(seed=3, vocab_size=70), byte_tokenizer()
        larger.save_pretrained(tmp_path)
        tokenizer.save_pretrained(tmp_path)
        network = FeatureNetwork.from_pretrained(str(tmp_path), like=model, tokenizer=tokenizer)
        assert torch.equal(self.features(network), self.features(FeatureNetwork(larger)))
        assert not any(p.requires_grad for p in network.parameters())
        with pytest.raises(ValueError, match=f"vocabulary of 70, the model one of {VOCABULARY}"):
            FeatureNetwork.from_pretrained(str(tmp_path), like=model)
        with pytest.raises(ValueError, match=r"tokenizer of .* differs"):
            FeatureNetwork.from_pretrained(str(tmp_path), like=model, tokenizer=byte_tokenizer(extra_tokens=1))

    def test_a_moving_average_follows_the_model(self) -> None:
        """In float32, whatever the model's precision."""
        model = tiny_model().to(torch.bfloat16)
        network = FeatureNetwork(model, source="average", decay=0.9)
        name = "layers.1.mlp.up_proj.weight"
        old = network.network.get_parameter(name).clone()
        assert old.dtype == torch.float32
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1.0)
        network.update_average(model)
        network.update_average(model)
        new = model.model.get_parameter(name).float()
        torch.testing.assert_close(network.network.get_parameter(name), 0.81 * old + 0.19 * new)


@pytest.mark.parametrize(
    ("layers", "taps"), [((0,), (0,)), ((1, 3), (1, 3)), ((0, 0.5, 2), (0, 2, 2)), ((0.0, 0.99), (0, 3)), ((4,), (4,))]
)
def test_taps(layers: tuple[float, ...], taps: tuple[int, ...]) -> None:
    model = tiny_model()
    network, plain = FeatureNetwork(model, layers=layers), untouched(model)
    plain.model.norm = nn.Identity()  # before which the last layer is tapped
    assert network.taps == taps
    check_features(network, plain, taps, "cpu", 1e-5)


def test_nothing_above_the_highest_tap_is_kept_or_run() -> None:
    model, ran = tiny_model(), []
    for index, layer in enumerate(model.model.layers):
        layer.register_forward_hook(lambda *_, index=index: ran.append(index))
    network = FeatureNetwork(model, layers=(1, 2), source="shared")
    ran.clear()
    network(some_packed(), LAYOUT)
    assert ran == [0, 1]
    sizes = [sum(p.numel() for p in part.parameters()) for part in (model, model.model.layers[0], model.lm_head)]
    kept = sum(p.numel() for p in FeatureNetwork(model, layers=(1, 2)).parameters())
    assert kept == sizes[0] - 2 * sizes[1] - sizes[2]


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
