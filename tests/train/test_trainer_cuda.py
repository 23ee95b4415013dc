"""The trainer on a GPU: the same rollouts and gradients as on a CPU in float32, and bf16 compute on float32 weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ebft import EBFTTrainer
from tests.train.test_trainer import config, counting_text, small_model

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
