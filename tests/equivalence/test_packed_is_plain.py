"""The invariant everything rests on: packed log-probs and hidden states are those of plain sequences, in trees too."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from ebft.method.cross_entropy import Reference
from ebft.method.layout import PackedLayout, StridedLayout
from ebft.method.losses import ebft_loss
from ebft.model.backbone import output_head, packed_hidden_states
from ebft.model.features import FeatureNetwork
from ebft.model.rollout import rollout
from tests.models import EXTRA_CONFIGS, FAMILIES, VOCABULARY, tiny_model
from tests.plain import off, places, plain_hidden_states, plain_outputs, random_batch, untouched

T = 22
DOCUMENTS = torch.tensor([[0] * 9 + [1] * 13, [4] * 3 + [7] * 15 + [-1] * 4])
ANSWERS = torch.tensor([[0] * 5 + [1] * 4 + [0] * 4 + [1] * 9, [0] * 6 + [1] * 9 + [0] * 7]).bool()


def layouts() -> dict[str, tuple[PackedLayout, Tensor | None]]:
    return {
        "one document": (StridedLayout(T, 4, 3, 2), None),
        "documents": (StridedLayout(T, 3, 2, 2, document_ids=DOCUMENTS), DOCUMENTS),
        "same documents in every row": (StridedLayout(T, 3, 2, 2, document_ids=DOCUMENTS[0]), DOCUMENTS[0]),
        "answers": (StridedLayout(T, 2, 2, 3, document_ids=DOCUMENTS, answer_mask=ANSWERS), DOCUMENTS),
        "padding": (StridedLayout(T, 4, 3, 2, lengths=torch.tensor([T, 15])), None),
        "whole answers": (PackedLayout.at_answer_starts(ANSWERS, 6, 2, document_ids=DOCUMENTS), DOCUMENTS),
        "chosen anchors": (PackedLayout(T, 5, 2, torch.tensor([[1, 2, 20], [7, 0, 16]])), None),
    }


@pytest.mark.parametrize("case", list(layouts()))
def test_packed_equals_plain(family: str, case: str, device_and_backend: tuple[str, str], tolerance: float) -> None:
    device, backend = device_and_backend
    layout, documents = layouts()[case]
    model = tiny_model(family).to(device)
    plain = untouched(model)
    ids, completions = random_batch(layout, seed=1)
    with torch.no_grad():
        hidden = packed_hidden_states(model, layout.pack(ids, completions).to(device), layout, backend=backend)
        log_probs = output_head(model).logits(hidden.flatten(0, 1)).unflatten(0, hidden.shape[:2]).log_softmax(-1)
    for place in places(ids, completions, layout, documents):
        logits, states = plain_outputs(plain, place.sequence.to(device))
        assert off(hidden[place.row, place.slots], states[-1][-layout.horizon :]) < tolerance
        assert off(log_probs[place.row, place.slots], logits.log_softmax(-1)[-layout.horizon :]) < tolerance
    own = torch.zeros(2, T, dtype=torch.long) if documents is None else documents.expand(2, -1)
    for row, document in product(range(2), own.unique().tolist()):
        inside = own[row] == document
        if document >= 0 and bool(inside.any()):
            expected = plain_hidden_states(plain, ids[row, inside].to(device))[-1]
            assert off(hidden[row, :T][inside], expected) < tolerance


def test_gradients_equal_those_of_plain_sequences(family: str, device_and_backend: tuple[str, str]) -> None:
    """Sum of log-probs of all completions, differentiated through the packed pass and through plain sequences."""
    device, backend = device_and_backend
    layout, documents = layouts()["documents"]
    model = tiny_model(family).to(device)
    plain = untouched(model)
    ids, completions = random_batch(layout, seed=4)
    hidden = packed_hidden_states(model, layout.pack(ids, completions).to(device), layout, backend=backend)
    totals = [torch.zeros((), device=device) for _ in range(2)]
    for place in places(ids, completions, layout, documents):
        targets = completions[place.row, place.anchor_index, place.sample].to(device)
        rows = torch.cat([layout.anchors[place.anchor_index][None] - 1, place.slots[:-1]])
        of_packed = output_head(model).logits(hidden[place.row, rows])
        of_plain = plain(input_ids=place.sequence[None].to(device), use_cache=False).logits[0, -layout.horizon - 1 : -1]
        for number, logits in enumerate((of_packed, of_plain)):
            totals[number] = totals[number] + logits.log_softmax(-1).gather(1, targets[:, None]).sum()
    for total in totals:
        total.backward()
    for (name, mine), other in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert other.grad is not None, name
        assert mine.grad is not None, name
        assert off(mine.grad, other.grad, 1e-3) < (1e-4 if device == "cpu" else 1e-3), name


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "gemma3"])  # heads, soft-caps and windows of all kinds
def test_parts_of_completions_and_of_anchors_change_nothing(monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    """The sdpa backend works through completions a part at a time, in the packed pass and in rollouts."""
    layout, _ = layouts()["documents"]
    ids, completions = random_batch(layout, seed=5)
    results = []
    for part, scores in (1000, 2**30), (1, 1), (7, 2000):
        monkeypatch.setattr("ebft.model.attention.PART", part)
        monkeypatch.setattr("ebft.model.attention.CHUNK_SCORES", {"cpu": scores})
        model = tiny_model(family)
        drawn = rollout(model, ids, layout, seeds=torch.tensor([1, 2]))
        hidden = packed_hidden_states(model, layout.pack(ids, completions), layout)
        (hidden * torch.randn(hidden.shape, generator=torch.Generator().manual_seed(9))).sum().backward()
        results.append((drawn, hidden, [p.grad for p in model.parameters() if p.grad is not None]))
    for drawn, hidden, gradients in results[1:]:
        assert torch.equal(drawn, results[0][0])
        assert off(hidden, results[0][1]) < 1e-5
        for mine, other in zip(gradients, results[0][2], strict=True):
            assert off(mine, other, 1e-3) <= 1e-4


def test_plain_calls_stay_as_they_were(family: str) -> None:
    """ebft leaves its attention in the model; whoever calls the model without a pass must not notice."""
    model = tiny_model(family)
    plain = untouched(model)
    layout, _ = layouts()["one document"]
    with torch.no_grad():
        packed_hidden_states(model, torch.zeros(1, layout.packed_length, dtype=torch.long), layout)
    ids = torch.randint(VOCABULARY, (2, 11), generator=torch.Generator().manual_seed(8))
    padding = torch.ones(2, 11, dtype=torch.long)
    padding[1, :4] = 0
    with torch.no_grad():
        found = model(input_ids=ids, attention_mask=padding).logits
        expected = plain(input_ids=ids, attention_mask=padding).logits
    real = padding.bool()
    assert (found[real] - expected[real]).abs().max() < 1e-4 * expected.abs().max()
    greedy = dict(max_new_tokens=4, do_sample=False, pad_token_id=0)
    assert torch.equal(model.generate(ids[:1], **greedy), plain.generate(ids[:1], **greedy))


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
