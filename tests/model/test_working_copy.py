"""The bf16 copy that computes, and compiled layers."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial

import pytest
import torch
from torch import nn

from ebft.method.layout import StridedLayout
from ebft.model import backbone
from ebft.model.backbone import compile_layers, decoder_of, packed_hidden_states, prepare_model
from ebft.model.features import FeatureNetwork
from ebft.model.working_copy import WorkingCopy, copy_in_dtype
from tests.models import VOCABULARY, tiny_model

LAYOUT = StridedLayout(16, 3, 4, 2)


def some_packed(seed: int = 0) -> torch.Tensor:
    return torch.randint(VOCABULARY, (2, LAYOUT.packed_length), generator=torch.Generator().manual_seed(seed))


def some_loss(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    hidden = packed_hidden_states(model, ids, LAYOUT).float()
    return (hidden * torch.randn(hidden.shape, generator=torch.Generator().manual_seed(9))).mean()


def test_a_copy_keeps_buffers_in_float32_and_ties_tied() -> None:
    model = tiny_model("qwen2")  # tied embeddings
    copied, pairs = copy_in_dtype(model, torch.bfloat16)
    assert {p.dtype for p in copied.parameters()} == {torch.bfloat16}
    assert {b.dtype for b in copied.buffers()} == {b.dtype for b in model.buffers()} == {torch.float32}
    assert copied.get_input_embeddings().weight is copied.get_output_embeddings().weight
    assert len(pairs) == len(list(model.parameters()))
    assert {p.dtype for p in model.parameters()} == {torch.float32}


@pytest.mark.parametrize("source", ["copy", "random"])
def test_a_frozen_network_in_bf16_keeps_its_positions_exact(source: str) -> None:
    """Frequencies of rotary embeddings in bf16 would move far positions by whole turns."""
    features = FeatureNetwork(tiny_model(), source=source, dtype=torch.bfloat16)  # type: ignore[arg-type]
    frequencies = dict(features.network.named_buffers())["rotary_emb.inv_freq"]
    torch.testing.assert_close(frequencies, dict(decoder_of(tiny_model()).named_buffers())["rotary_emb.inv_freq"])


def test_gradients_of_many_micro_batches_add_up_in_float32() -> None:
    model = tiny_model().train()
    prepare_model(model)
    working = WorkingCopy(model)
    expected = [torch.zeros_like(p) for p in model.parameters()]
    apart, _ = copy_in_dtype(model, torch.bfloat16)
    for seed in range(5):
        some_loss(working.model, some_packed(seed)).backward()
        some_loss(apart, some_packed(seed)).backward()
        for total, p in zip(expected, apart.parameters(), strict=True):
            if p.grad is not None:  # the head takes no part in this loss
                total += p.grad.float()
                p.grad = None
    assert all(p.grad is None for p in working.model.parameters())
    for total, p in zip(expected, model.parameters(), strict=True):
        if p.grad is None:
            assert not total.any()
            continue
        assert p.grad.dtype == torch.float32
        torch.testing.assert_close(p.grad, total, rtol=1e-6, atol=1e-7)


def test_small_steps_are_kept_and_reach_the_copy_in_the_end() -> None:
    model = tiny_model()
    working = WorkingCopy(model)
    weight = next(model.parameters())
    before = next(working.model.parameters()).detach().clone()
    for _ in range(2000):
        weight.data.add_(weight.detach().abs().max() * 1e-5)
        working.refresh()
        if torch.equal(next(working.model.parameters()), before):
            continue
        break
    else:
        pytest.fail("the copy never moved")
    torch.testing.assert_close(next(working.model.parameters()), weight.detach().bfloat16())


@pytest.fixture
def traced_only(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Everything torch.compile does except generating code: what is traced, shared and recompiled."""
    backbone._compiled_class.cache_clear()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    backbone._compiled_class.cache_clear()
    torch._dynamo.reset()


def graphs() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_all_layers_share_what_is_compiled_and_nothing_is_compiled_again(family: str, traced_only: None) -> None:
    model = tiny_model(family)
    plain = copy.deepcopy(model)
    prepare_model(model)
    compile_layers(decoder_of(model))
    found, expected = (some_loss(m, some_packed()) for m in (model, plain))
    torch.testing.assert_close(found, expected)
    compiled = graphs()
    kinds = 2 if family == "gemma3" else 1  # full and sliding attention
    assert compiled <= 5 * kinds  # parts of a layer between attention and the rest; not once for each of 4 layers
    some_loss(model, some_packed(1))
    documents = torch.tensor([[0] * 7 + [1] * 9, [0] * 12 + [-1] * 4])
    with_documents = StridedLayout(16, 3, 4, 2, document_ids=documents, fixed_shape=True)
    packed_hidden_states(model, some_packed(2), with_documents)
    assert graphs() == compiled


def test_a_copy_of_a_compiled_model_computes_with_its_own_weights(traced_only: None) -> None:
    model = tiny_model()
    prepare_model(model)
    compile_layers(decoder_of(model))
    compile_layers(decoder_of(model))  # twice is once
    before = some_loss(model, some_packed()).item()
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for p in copied.parameters():
            p.mul_(0.5)
    assert some_loss(model, some_packed()).item() == before
    assert some_loss(copied, some_packed()).item() != before
