"""Copies in bf16: the one that computes, and frozen networks."""

from __future__ import annotations

import torch

from ebft.model.backbone import WorkingCopy, copy_in_dtype, decoder_of, prepare_model
from ebft.model.features import FeatureNetwork
from tests.model.batches import some_loss, some_packed
from tests.models import tiny_model


def test_a_copy_keeps_buffers_in_float32_and_ties_tied() -> None:
    """Frequencies of rotary embeddings in bf16 would move far positions by whole turns."""
    model = tiny_model("qwen2")  # tied embeddings
    copied, pairs = copy_in_dtype(model, torch.bfloat16)
    assert {p.dtype for p in copied.parameters()} == {torch.bfloat16}
    assert {b.dtype for b in copied.buffers()} == {b.dtype for b in model.buffers()} == {torch.float32}
    assert copied.get_input_embeddings().weight is copied.get_output_embeddings().weight
    assert len(pairs) == len(list(model.parameters()))
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    frequencies = [dict(decoder_of(model).named_buffers())["rotary_emb.inv_freq"]]
    frozen = (FeatureNetwork(model, source=source, dtype=torch.bfloat16) for source in ("copy", "random"))
    frequencies += [dict(network.network.named_buffers())["rotary_emb.inv_freq"] for network in frozen]
    torch.testing.assert_close(frequencies[1:], 2 * frequencies[:1])


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
