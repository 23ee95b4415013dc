"""Products of the same input as one: the same hidden states, the same gradients, the same names."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from ebft.model.backbone import decoder_of, prepare_model
from ebft.model.features import FeatureNetwork
from ebft.model.fingerprint import weight_fingerprint
from ebft.model.fused import fuse_projections
from ebft.model.working_copy import WorkingCopy
from tests.model.packed_losses import LAYOUT, some_loss, some_packed
from tests.models import FAMILIES, tiny_model


def prepared(family: str) -> nn.Module:
    model = tiny_model(family)
    prepare_model(model)
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_those_of_single_products(family: str) -> None:
    plain, model = prepared(family), prepared(family)
    working = WorkingCopy(model, torch.float32)
    working.fuse_projections()
    assert dict(working.model.named_parameters()).keys() == dict(plain.named_parameters()).keys()
    for seed in range(2):  # twice, so that gradients add up
        expected, found = some_loss(plain, some_packed(seed)), some_loss(working.model, some_packed(seed))
        torch.testing.assert_close(found, expected)
        expected.backward()
        found.backward()
    for (name, p), (_, other) in zip(plain.named_parameters(), model.named_parameters(), strict=True):
        assert (p.grad is None) == (other.grad is None), name
        if p.grad is not None and other.grad is not None:
            torch.testing.assert_close(other.grad, p.grad, rtol=1e-4, atol=1e-6, msg=name)


def test_most_families_have_something_to_join() -> None:
    joined = {family: len(fuse_projections(decoder_of(prepared(family)))) for family in FAMILIES}
    assert joined["llama"] == 2 * len(list(tiny_model("llama").get_decoder().layers))
    assert joined["qwen2"] == 3 * len(list(tiny_model("qwen2").get_decoder().layers)), "biases too"
    assert sum(count > 0 for count in joined.values()) >= len(FAMILIES) // 2, joined


def test_a_refreshed_copy_computes_with_the_new_weights() -> None:
    model = prepared("llama")
    working = WorkingCopy(model, torch.float32)
    working.fuse_projections()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.1)
    working.refresh()
    torch.testing.assert_close(some_loss(working.model, some_packed()), some_loss(model, some_packed()))


def test_features_and_their_fingerprint_stay() -> None:
    plain, fused = (FeatureNetwork(prepared("qwen2")) for _ in range(2))
    fused.fuse_projections()
    assert weight_fingerprint(fused.decoder) == weight_fingerprint(plain.decoder)
    for found, expected in zip(fused(some_packed(), LAYOUT), plain(some_packed(), LAYOUT), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("change", ["order", "input"])
def test_a_family_that_uses_the_names_otherwise_is_left_alone(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = prepared("llama")
    mlp = type(decoder_of(model).layers[0].mlp)  # type: ignore[index, union-attr]

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        up = self.up_proj(x if change == "order" else 2 * x)
        return self.down_proj(up * self.gate_proj(x)) if change == "order" else self.down_proj(self.gate_proj(x) * up)

    monkeypatch.setattr(mlp, "forward", forward)
    expected = some_loss(model, some_packed())
    assert fuse_projections(decoder_of(model)) == []
    torch.testing.assert_close(some_loss(model, some_packed()), expected)


def test_weights_that_belong_to_somebody_else_are_left_alone() -> None:
    model = prepared("llama")
    for source in ("shared", "average"):
        FeatureNetwork(model, source=source).fuse_projections()  # type: ignore[arg-type]
    assert all(type(m) is nn.Linear for m in model.modules() if isinstance(m, nn.Linear))
