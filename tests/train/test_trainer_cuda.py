"""The trainer on a GPU: rollouts and gradients as on a CPU, bf16 compute on float32 weights, no waiting host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ebft import EBFTTrainer
from ebft.data.packing import collate
from tests.train.small_runs import config, counting_text, small_model

pytestmark = pytest.mark.cuda


def test_float32_on_a_gpu_gives_what_a_cpu_gives(tmp_path: Path) -> None:
    logs = []
    for device in ("cpu", "cuda"):
        args = config(tmp_path / device, use_cpu=device == "cpu", gamma=0.1, document_masks=True, max_steps=3)
        trainer = EBFTTrainer(small_model(), args, counting_text(), counting_text(documents=8, seed=1))
        trainer.train()
        logs.append([entry for entry in trainer.state.log_history if "reward" in entry])
    for on_cpu, on_gpu in zip(*logs, strict=True):
        for name in ("loss", "reward", "grad_norm", "entropy", "ebft/cfm", "ebft/cross_entropy", "ebft/distinct"):
            assert on_gpu[name] == pytest.approx(on_cpu[name], rel=5e-3, abs=1e-4), name


@pytest.mark.parametrize(
    "changes", [{}, {"gradient_checkpointing": True}, {"document_masks": True, "kl_weight": 0.1}], ids=str
)
def test_bf16_compute_moves_float32_weights(tmp_path: Path, changes: dict) -> None:
    model = small_model()
    args = config(tmp_path, use_cpu=False, bf16=True, gamma=0.1, max_steps=5, learning_rate=1e-6, **changes)
    trainer = EBFTTrainer(model, args, counting_text(), counting_text(documents=8, seed=1))
    start = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    trainer.train()
    assert {p.dtype for p in trainer.model.parameters()} == {torch.float32}
    assert {p.dtype for p in trainer.features.parameters()} == {torch.bfloat16}
    assert all(not torch.equal(start[name], p) for name, p in trainer.model.named_parameters())
    assert trainer.evaluate()["eval_cfm"] > 0


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
