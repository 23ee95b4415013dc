"""What only a GPU shows: compiled layers, graphs, bf16, and that the host neither waits nor compiles again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ebft import EBFTTrainer
from ebft.data.packing import collate
from ebft.method.layout import StridedLayout
from ebft.model import rollout_graph
from ebft.model.backbone import compile_layers, decoder_of, output_head, packed_hidden_states, prepare_model
from ebft.model.rollout import rollout
from ebft.model.working_copy import copy_in_dtype
from tests.models import VOCABULARY, tiny_model
from tests.train.test_trainer import config, counting_text, small_model

pytestmark = pytest.mark.cuda

T = 200  # more than one block of attention


def documents(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    changes = torch.rand(2, T, generator=generator) < 0.02
    ids = changes.long().cumsum(1)
    ids[1, 180:] = -1
    return ids


def layout(seed: int) -> StridedLayout:
    return StridedLayout(T, 5, 4, 3, document_ids=documents(seed), fixed_shape=True)


def some_ids(seed: int) -> Tensor:
    return torch.randint(VOCABULARY, (2, T), generator=torch.Generator().manual_seed(seed))


def compiled_model(family: str, dtype: torch.dtype = torch.float32) -> Any:
    model, _ = copy_in_dtype(tiny_model(family, hidden_size=128, head_dim=32).cuda(), dtype)
    prepare_model(model)
    compile_layers(decoder_of(model))
    return model


def log_probs_of(model: Any, packed: Tensor, seed: int, backend: Any) -> tuple[Tensor, Tensor]:
    hidden = packed_hidden_states(model, packed, layout(seed), backend)
    weights = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(9)).to(hidden.device)
    (hidden.float() * weights).mean().backward()
    with torch.no_grad():
        logits = output_head(model).logits(hidden.flatten(0, 1))
    return logits.log_softmax(-1), torch.cat(
        [p.grad.float().flatten() for p in model.parameters() if p.grad is not None]
    )


def error(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 3e-2)], ids=["f32", "bf16"])
def test_compiled_flex_equals_a_float32_reference(family: str, dtype: torch.dtype, tolerance: float) -> None:
    """Weights rounded to bf16 in both, so that only the computation differs."""
    model = compiled_model(family, dtype)
    reference, _ = copy_in_dtype(model, torch.float32)
    for layer in decoder_of(reference).layers:
        layer.__class__ = type(layer).__mro__[1]  # not compiled
    packed = layout(0).pack(some_ids(0), torch.randint(VOCABULARY, (2, layout(0).num_anchors, 3, 5))).cuda()
    found, expected = log_probs_of(model, packed, 0, "flex"), log_probs_of(reference, packed, 0, "sdpa")
    assert error(found[0], expected[0]) < tolerance
    assert error(found[1], expected[1]) < 3 * tolerance


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_replayed_rollout_is_the_rollout(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = compiled_model(family)
    seeds = torch.tensor([3, 4])
    captured = [rollout(model, some_ids(i).cuda(), layout(i), seeds=seeds, backend="flex") for i in range(3)]
    assert len(rollout_graph.GRAPHS[prepare_model(model)]) == 1
    monkeypatch.setattr(rollout_graph, "LAUNCH_BOUND", 0)
    for i, found in enumerate(captured):
        expected = rollout(model, some_ids(i).cuda(), layout(i), seeds=seeds, backend="flex")
        valid = layout(i).anchor_mask[..., None].expand(-1, -1, 3)
        assert torch.equal(found[valid], expected[valid])


def test_sampled_log_probs_are_training_log_probs() -> None:
    """Tokens drawn from the cached pass, in bf16, are as likely under the packed pass up to rounding."""
    model = compiled_model("llama", torch.bfloat16)
    ids, where = some_ids(0).cuda(), StridedLayout(T, 5, 4, 3)
    completions = rollout(model, ids, where, temperature=1.0, seeds=torch.tensor([1, 2]), backend="flex")
    packed = where.pack(ids, completions)
    rows = []
    for backend in ("flex", "sdpa"):
        with torch.no_grad():
            hidden = packed_hidden_states(model, packed, where, backend)  # type: ignore[arg-type]
            log_p = output_head(model).logits(hidden.flatten(0, 1)).log_softmax(-1).unflatten(0, hidden.shape[:2])
        of_completions = where.completions(log_p)[:, :, :, :-1]
        rows.append(of_completions.gather(-1, completions[..., 1:, None]))
    assert float((rows[0] - rows[1]).abs().mean()) < 0.05
    assert float((rows[0].exp().mean() - rows[1].exp().mean()).abs()) < 0.01


@pytest.mark.parametrize("changes", [{}, {"document_masks": True}, {"packing": False}], ids=str)
def test_an_iteration_waits_for_eigenvalues_alone_and_compiles_nothing_again(
    tmp_path: Path, changes: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = config(tmp_path, use_cpu=False, bf16=True, gamma=0.1, gradient_accumulation_steps=2, **changes)
    trainer = EBFTTrainer(small_model(), args, counting_text())
    trainer.create_optimizer_and_scheduler(10)
    trainer.state.max_steps = 10
    data = trainer.train_dataset
    compiled = torch._dynamo.utils.counters["stats"]

    def one(rows: list[int]) -> None:
        window, count = trainer.get_batch_samples(iter(batches(rows)), 2, args.device)
        for batch in window:
            trainer.training_step(trainer.model, batch, count)
        torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()

    def batches(rows: list[int]) -> list[dict[str, Any]]:
        both = [collate([data[r] for r in rows[:2]]), collate([data[r] for r in rows[2:]])]
        return [
            {name: value.cuda() if isinstance(value, Tensor) else value for name, value in batch.items()}
            for batch in both
        ]

    eigh, waits = torch.linalg.eigh, []

    def watched(matrices: Tensor) -> Any:
        """cuSOLVER's result is checked on the host: the one thing that is waited for."""
        waits.append(matrices.shape)
        mode = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("default")
        try:
            return eigh(matrices)
        finally:
            torch.cuda.set_sync_debug_mode(mode)

    monkeypatch.setattr(torch.linalg, "eigh", watched)
    one([0, 1, 2, 3])
    one([1, 0, 3, 2])
    waits.clear()
    before = compiled["unique_graphs"]
    ready = batches([4, 5, 6, 0])
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        window, count = trainer.get_batch_samples(iter(ready), 2, args.device)
        for batch in window:
            trainer.training_step(trainer.model, batch, count)
        torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
        trainer.optimizer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert compiled["unique_graphs"] == before
    assert len(waits) == 1, "once a window"
