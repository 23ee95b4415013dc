"""Updates as graphs: replayed with other batches they add the gradients of those."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ebft import iteration
from ebft.config.method import MethodConfig
from ebft.iteration import UpdateGraphs, loss_of
from ebft.model import layout_graph
from ebft.model.backbone import base_model
from ebft.model.working_copy import WorkingCopy
from ebft.runtime.gradients import FixedGradients
from tests.model import compiled_models as gpu

pytestmark = pytest.mark.cuda
ROOM = 800  # nodes of a tree, more than there are


def micro_batch(seed: int, with_lengths: bool) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    layout, ids = gpu.layout(seed).to("cuda"), gpu.some_ids(seed).cuda()
    shape = (2, layout.num_anchors, layout.samples, layout.horizon)
    completions = torch.randint(2, shape, generator=generator).cuda()  # two different tokens, so that many agree
    lengths = torch.randint(1, layout.horizon + 1, shape[:3], generator=generator).cuda() if with_lengths else None
    tree = layout.with_tree(layout.tree_of(completions, ids, lengths), ROOM, 2 * ROOM)
    return {
        "input_ids": tree.pack(ids, completions),
        "layout": tree,
        "advantages": torch.randn(shape[:3], generator=generator).cuda(),
        "completion_lengths": lengths,
        "generated_tokens": torch.tensor(700.0, device="cuda"),
        "truth_tokens": torch.tensor(300.0, device="cuda"),
    }


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("kind", ["float32", "working copy", "fused copy", "adapter", "divergence", "lengths"])
def test_replayed_updates_add_the_gradients_of_their_batches(family: str, kind: str) -> None:
    trained: Any = gpu.compiled_model(family)
    model, precision = trained, nullcontext()
    config = MethodConfig(gamma=0.1, kl_weight=0.3 if kind == "divergence" else 0.0, attention_backend="flex")
    frozen: Any = gpu.compiled_model(family).requires_grad_(False) if kind == "divergence" else None
    fixed = FixedGradients(trained)
    if kind == "working copy":
        working = WorkingCopy(trained)
        model = working.model
    if kind == "fused copy":
        working = WorkingCopy(trained)
        working.fuse_projections()
        assert working.gradients is not None
        model, fixed = working.model, working.gradients
    if kind == "adapter":
        from peft import LoraConfig, get_peft_model

        model = trained = get_peft_model(trained, LoraConfig(r=4, init_lora_weights=False, target_modules="all-linear"))
        fixed = FixedGradients(trained)
        precision = torch.autocast("cuda", torch.bfloat16)
    batches = [micro_batch(seed, kind == "lengths") for seed in range(4)]

    def reference() -> tuple[nn.Module, Any]:
        return frozen, nullcontext()

    expected_losses = []
    for batch in batches:
        fixed.attach()
        with precision:
            terms = loss_of(model, batch, config, reference)
        terms.loss.backward()
        expected_losses.append(terms.loss.detach())
        del terms  # and with it the stream on which gradients were accumulated
    expected = gradients(trained)

    trained.zero_grad()
    graphs = UpdateGraphs(model, fixed, config, reference)
    losses = []
    for batch in batches:  # computed, captured, replayed, replayed
        assert graphs.pay(batch)
        with precision:
            losses.append(graphs.add_gradient(batch).loss)
    assert len(layout_graph.GRAPHS[base_model(model)]) == 1
    rounding = 1e-4 if kind in ("float32", "divergence", "lengths") else 2e-2
    torch.testing.assert_close(torch.stack(losses), torch.stack(expected_losses), rtol=rounding, atol=rounding)
    assert len(set(map(float, losses))) == len(batches)
    assert_close(gradients(trained), expected, rounding)


def test_a_capture_that_fails_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for lack of memory, in the middle of a pass: its batch and those after it have their own gradients."""
    trained: Any = gpu.compiled_model("gemma3", head=256)
    working = WorkingCopy(trained)
    working.fuse_projections()
    assert working.gradients is not None
    config, attempts = MethodConfig(gamma=0.1, attention_backend="flex"), []
    batches = [micro_batch(seed, with_lengths=False) for seed in range(4)]
    for batch in batches:
        working.gradients.attach()
        loss_of(working.model, batch, config).loss.backward()
    expected = gradients(trained)

    def fails(*given: Any) -> Any:
        terms = loss_of(*given)
        if torch.cuda.is_current_stream_capturing():
            attempts.append(given)
            raise torch.OutOfMemoryError("no memory is left")
        return terms

    monkeypatch.setattr(iteration, "loss_of", fails)
    trained.zero_grad()
    graphs = UpdateGraphs(working.model, working.gradients, config)
    for batch in batches:
        graphs.add_gradient(batch)
    assert len(attempts) == 1
    assert_close(gradients(trained), expected, 2e-2)


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor], rounding: float) -> None:
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        difference = (gradient - expected[name]).norm() / expected[name].norm().clamp(min=1e-6)
        assert difference < rounding, name
