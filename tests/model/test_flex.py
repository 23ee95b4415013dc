"""Masks and merging of the flex kernels against the mask rule and one plain softmax."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ebft.method.layout import PackedLayout
from ebft.model import flex
from ebft.model.backbone import decoder_of, output_head, packed_hidden_states
from ebft.model.working_copy import copy_in_dtype
from tests.model import compiled_models as gpu
from tests.model.mask_cases import cases, dense_mask
from tests.models import VOCABULARY


@settings(max_examples=100, deadline=None)
@given(cases(), st.integers(0, 5))
def test_the_masks_of_the_kernels_are_the_rule(case: tuple[PackedLayout, int | None, int], step: int) -> None:
    layout, window, block = case
    T, S, step = layout.context_length, layout.packed_length, min(step, layout.horizon - 1)
    everything = torch.arange(S)
    of_step = everything[T + step :: layout.horizon]
    for mask, queries, keys in (
        (flex.packed_mask(layout, window, block), everything, S),
        (flex.context_mask(layout, window, block), everything[:T], T),
        (flex.step_mask(layout, window, block, step), of_step, T),
    ):
        assert mask.shape[-2:] == (len(queries), keys)
        rows, places = layout.mask_rows[:, None, None], torch.arange(len(queries))[:, None]
        found = mask.mask_mod(rows, torch.tensor(0), places, torch.arange(keys))
        assert torch.equal(found, dense_mask(layout, queries, keys, window))


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize(("step", "room"), [(0, 1), (5, 6), (7, 8), (9, 16), (20, 39)])
def test_context_and_own_tokens_merge_to_one_softmax(
    step: int, room: int, window: int | None, softcap: float | None
) -> None:
    b, kv, repeat, B, n, d, T = 2, 2, 3, 2, 2, 5, 11
    generator = torch.Generator().manual_seed(step)
    q = torch.randn(b, kv * repeat, B * n, d, generator=generator)
    context_k, context_v = torch.randn(2, b, kv, T, d, generator=generator)
    own_k, own_v = torch.randn(2, b, kv, B, n, room, d, generator=generator)  # later tokens must not count

    def score(products: Tensor) -> Tensor:
        return products * 0.3 if softcap is None else softcap * torch.tanh(products * 0.3 / softcap)

    expected = torch.empty_like(q)
    from_context, lse = torch.empty_like(q), torch.empty(b, kv * repeat, B * n)
    for row, head, query in itertools.product(range(b), range(kv * repeat), range(B * n)):
        group, first = head // repeat, max(0, step + 1 - (window or step + 1))
        mine = own_k[row, group].flatten(0, 1)[query, first : step + 1]
        values = own_v[row, group].flatten(0, 1)[query, first : step + 1]
        on_context = score(context_k[row, group] @ q[row, head, query])
        lse[row, head, query] = on_context.logsumexp(0)
        from_context[row, head, query] = on_context.softmax(0) @ context_v[row, group]
        weights = torch.cat([on_context, score(mine @ q[row, head, query])]).softmax(0)
        expected[row, head, query] = weights @ torch.cat([context_v[row, group], values])
    found = flex._merge_own(q, from_context, lse, own_k, own_v, torch.tensor(step), 0.3, window, softcap)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def log_probs_of(model: Any, packed: Tensor, seed: int, backend: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """And the gradients of some loss, by weight."""
    model.zero_grad()
    hidden = packed_hidden_states(model, packed, gpu.layout(seed), backend)
    weights = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(9)).to(hidden.device)
    (hidden.float() * weights).mean().backward()
    with torch.no_grad():
        logits = output_head(model).logits(hidden.flatten(0, 1))
    return logits.log_softmax(-1), {name: p.grad.float() for name, p in model.named_parameters() if p.grad is not None}


def error(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.cuda
@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize(
    ("dtype", "tolerance", "head"),
    [(torch.float32, 1e-4, 32), *((torch.bfloat16, 3e-2, head) for head in (32, 64, 128, 256))],
    ids=str,
)
def test_compiled_flex_equals_a_float32_reference(family: str, dtype: torch.dtype, tolerance: float, head: int) -> None:
    """Weights rounded to bf16 in both, so that only the computation differs. Wide heads may have finer blocks, and
    without `wait_for_stores` a race: so three passes, and every weight by itself."""
    model = gpu.compiled_model(family, dtype, head)
    reference, _ = copy_in_dtype(model, torch.float32)
    for layer in decoder_of(reference).layers:
        layer.__class__ = type(layer).__mro__[1]  # not compiled
    packed = gpu.layout(0).pack(gpu.some_ids(0), torch.randint(VOCABULARY, (2, gpu.layout(0).num_anchors, 3, 5))).cuda()
    expected, gradients = log_probs_of(reference, packed, 0, "sdpa")
    for _ in range(3):
        found, of_weights = log_probs_of(model, packed, 0, "flex")
        assert error(found, expected) < tolerance
        assert max(error(of_weights[name], gradients[name]) for name in gradients) < 3 * tolerance
