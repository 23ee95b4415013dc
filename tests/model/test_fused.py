"""Products of the same input as one: the same hidden states, the same gradients, the same names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from ebft.model.backbone import compile_layers, decoder_of, prepare_model
from ebft.model.features import FeatureNetwork, weight_fingerprint
from ebft.model.fused import add_product, fuse_projections
from ebft.model.working_copy import WorkingCopy
from tests.model.packed_losses import LAYOUT, some_loss, some_packed
from tests.models import FAMILIES, tiny_model


def prepared(family: str, **overrides: object) -> nn.Module:
    model = tiny_model(family, **overrides)
    prepare_model(model)
    return model


WIDE = {"intermediate_size": 160}  # wide enough for gradients that stay apart


@pytest.mark.parametrize("overrides", [{}, WIDE], ids=["narrow", "wide"])
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_those_of_single_products(family: str, overrides: dict[str, object]) -> None:
    plain, model = (prepared(family, **overrides) for _ in range(2))
    working = WorkingCopy(model, torch.float32)
    working.fuse_projections()
    assert dict(working.model.named_parameters()).keys() == dict(plain.named_parameters()).keys()
    assert working.gradients is not None
    for seed in range(2):  # twice, so that gradients add up
        working.gradients.attach()
        expected, found = some_loss(plain, some_packed(seed)), some_loss(working.model, some_packed(seed))
        torch.testing.assert_close(found, expected)
        expected.backward()
        found.backward()
    for (name, p), (_, other) in zip(plain.named_parameters(), model.named_parameters(), strict=True):
        expected = torch.zeros_like(p) if p.grad is None else p.grad
        torch.testing.assert_close(other.grad, expected, rtol=1e-4, atol=1e-6, msg=name)


def test_most_families_have_something_to_join() -> None:
    joined = {family: fuse_projections(decoder_of(prepared(family))) for family in FAMILIES}
    assert joined["llama"] == 2 * len(list(tiny_model("llama").get_decoder().layers))
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


@pytest.mark.parametrize("change", [FeatureNetwork.fuse_projections, FeatureNetwork.turn_weights])
def test_features_and_their_fingerprint_stay(change: Callable[[FeatureNetwork], None]) -> None:
    plain, changed = (FeatureNetwork(prepared("qwen2")) for _ in range(2))
    change(changed)
    assert weight_fingerprint(changed.decoder) == weight_fingerprint(plain.decoder)
    for found, expected in zip(changed(some_packed(), LAYOUT), plain(some_packed(), LAYOUT), strict=True):
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
    assert fuse_projections(decoder_of(model)) == 0
    torch.testing.assert_close(some_loss(model, some_packed()), expected)


def test_weights_that_belong_to_somebody_else_are_left_alone() -> None:
    model = prepared("llama")
    for source in ("shared", "average"):
        features = FeatureNetwork(model, source=source)  # type: ignore[arg-type]
        features.fuse_projections()
        features.turn_weights()
        linears = [m for m in features.decoder.modules() if isinstance(m, nn.Linear)]
        assert all(type(m) is nn.Linear and m.weight.is_contiguous() for m in linears)


def test_gradients_of_bf16_products_add_up_in_float32() -> None:
    """What one product adds is not rounded to bf16, so a thousandth of a gradient is not lost beside the whole."""
    total, generator = torch.zeros(6, 5), torch.Generator().manual_seed(0)
    a, b = (torch.randn(40, width, generator=generator).bfloat16() for width in (6, 5))
    for _ in range(1000):
        add_product(total, a, b)
    torch.testing.assert_close(total, 1000 * (a.double().t() @ b.double()).float(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("family", "overrides", "checkpointing"), [("llama", WIDE, False), ("llama", WIDE, True), ("qwen2", {}, False)]
)
def test_compiled_layers_add_to_the_same_totals(family: str, overrides: dict[str, object], checkpointing: bool) -> None:
    """Also where layers are run again in the backward pass: gradients are added once all the same."""
    model, other = (prepared(family, **overrides) for _ in range(2))
    working = [WorkingCopy(m, torch.float32) for m in (model, other)]
    for copy in working:
        copy.fuse_projections()
    if checkpointing:
        working[1].model.gradient_checkpointing_enable({"use_reentrant": False})
        working[1].model.train()
    compile_layers(decoder_of(working[1].model))
    with torch.no_grad():
        without_gradients = [some_loss(copy.model, some_packed()) for copy in working]
    torch.testing.assert_close(*without_gradients)
    for copy in working:
        assert copy.gradients is not None
        for seed in range(2):
            copy.gradients.attach()
            some_loss(copy.model, some_packed(seed)).backward()
    for (name, p), (_, q) in zip(model.named_parameters(), other.named_parameters(), strict=True):
        assert p.grad is not None
        torch.testing.assert_close(q.grad, p.grad, rtol=1e-4, atol=1e-6, msg=name)
