"""Trees compute what plain sequences give: hidden states, features, loss and gradient, each prefix once."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from ebft.method.cross_entropy import Reference
from ebft.method.layout import PackedLayout
from ebft.method.losses import ebft_loss
from ebft.model.backbone import output_head, packed_hidden_states
from ebft.model.features import FeatureNetwork
from tests.equivalence.test_packed_is_plain import T, layouts
from tests.models import EXTRA_CONFIGS, FAMILIES, tiny_model
from tests.plain import off, places, plain_hidden_states, random_batch, untouched


def a_batch(layout: PackedLayout, sharing: str) -> tuple[Tensor, Tensor]:
    """Contexts [2, T] and completions that agree with each other, or with the truth, for a while."""
    ids, completions = random_batch(layout, seed=1)
    if sharing == "some":
        completions = completions % 2
    elif sharing == "all equal":
        completions = completions[:, :, :1].expand(completions.shape).contiguous()
    elif sharing == "none equal":
        completions[..., 0] = torch.arange(layout.samples)
    elif sharing == "the truth":  # each sample leaves it one token later than the one before
        truths = layout.truths(ids)[:, :, None].clamp(min=0)
        steps = torch.arange(layout.horizon)
        completions = torch.where(steps <= torch.arange(layout.samples)[:, None], truths, completions % 2)
    return ids, completions


ALL = (*FAMILIES, *EXTRA_CONFIGS)
FEW = ("llama", "gemma3")  # where what sharing does to a layout is the question


@pytest.mark.parametrize(
    ("family", "case", "sharing"),
    [
        *product(ALL, ["documents"], ["the truth"]),
        *product(ALL, ["one document"], ["some"]),
        *product(FEW, ["documents"], ["all equal"]),
        *product(FEW, ["whole answers"], ["the truth"]),
        *product(FEW, ["padding"], ["none equal"]),
    ],
)
def test_a_tree_equals_plain_sequences(
    family: str, case: str, sharing: str, device_and_backend: tuple[str, str], tolerance: float
) -> None:
    device, backend = device_and_backend
    layout, documents = layouts()[case]
    ids, completions = a_batch(layout, sharing)
    model = tiny_model(family).to(device)
    plain, features = untouched(model), FeatureNetwork(model, backend=backend)
    of_plain_layout = features(layout.pack(ids, completions).to(device), layout)
    valid = layout.anchor_mask.expand(2, -1)
    for tree in (layout.as_tree(completions), layout.as_tree(completions, ids)):
        if sharing == "all equal":
            assert tree.packed_length <= T + layout.num_anchors * layout.horizon
        packed = tree.pack(ids, completions).to(device)
        with torch.no_grad():
            hidden = packed_hidden_states(model, packed, tree, backend=backend)
        for place in places(ids, completions, layout, documents):
            expected = plain_hidden_states(plain, place.sequence.to(device))[-1][-layout.horizon :]
            found = hidden[place.row, tree.completion_slots[place.row, place.anchor_index, place.sample]]
            assert off(found, expected) < tolerance
        for found, expected in zip(features(packed, tree), of_plain_layout, strict=True):
            assert (found - expected)[valid].abs().max() < tolerance


@pytest.mark.parametrize(
    ("family", "sharing", "kl_weight"),
    [
        *product(ALL, ["the truth"], [0.0]),
        *product(FEW, ["some"], [0.3]),
        *product(FEW, ["all equal", "none equal"], [0.0]),
    ],
)
def test_loss_and_gradient_are_those_of_the_plain_layout(
    family: str, sharing: str, kl_weight: float, device_and_backend: tuple[str, str]
) -> None:
    """Of all that has weight: without last tokens, tokens after an end token, and anchors without advantages; places
    without a token are not computed, behind small trees and short texts."""
    device, backend = device_and_backend
    layout, _ = layouts()["documents"]
    ids, completions = (x.to(device) for x in a_batch(layout, sharing))
    advantages = torch.randn(completions.shape[:3], generator=torch.Generator().manual_seed(3)).to(device)
    equal = (completions == completions[:, :, :1]).all(-1).all(-1)
    advantages = torch.where(equal[..., None], 0.0, advantages)
    lengths = layout.completion_lengths(completions, torch.tensor([1]))
    held = lengths - 1
    if not kl_weight:
        held = torch.where(equal[..., None], -1, held)
    tree = layout.to(device).as_tree(completions, ids, held)
    assert tree.packed_length < layout.packed_length
    if sharing == "all equal" and not kl_weight:
        assert tree.packed_length == T

    def terms_and_gradients(layout: PackedLayout) -> tuple[Any, list[Tensor]]:
        model = tiny_model(family).to(device)
        packed = layout.pack(ids, completions)
        hidden = packed_hidden_states(model, packed, layout, backend, whole=False)
        reference = None
        if kl_weight:
            other = tiny_model(family, seed=1).to(device)
            with torch.no_grad():
                reference = Reference(packed_hidden_states(other, packed, layout, backend), output_head(other))
        arguments = (advantages, 0.7, 0.4, lengths, reference, kl_weight)
        terms = ebft_loss(hidden, output_head(model), packed, layout, *arguments)
        terms.loss.backward()
        return terms, [p.grad for p in model.parameters() if p.grad is not None]

    expected, gradients = terms_and_gradients(layout)
    found, of_tree = terms_and_gradients(tree)
    assert not tree.has_token.all()
    precise = 1e-5 if device == "cpu" else 1e-4
    for name in ("loss", "policy", "cross_entropy", "kl"):
        mine, other = getattr(found, name), getattr(expected, name)
        if other is not None:
            assert float(mine.detach()) == pytest.approx(float(other.detach()), rel=precise, abs=precise), name
    assert found.generated_tokens == expected.generated_tokens
    wanted = tree.predicted & layout.anchor_mask[..., None, None].to(device)
    wanted &= torch.arange(layout.horizon, device=device) < lengths[..., None]
    assert (found.log_probs - expected.log_probs)[wanted].abs().max() < precise * 100 if bool(wanted.any()) else True
    for mine, other in zip(of_tree, gradients, strict=True):
        assert off(mine, other, 1e-3) <= precise * 10
