"""Runs whose numbers are none: they stop with their weights as they were, and the known cause is out of the way."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from ebft import EBFTTrainer
from ebft.errors import TrainingDiverged
from ebft.model.attention import avoid_cudnn_attention
from ebft.train.divergence import GradientNorms
from tests.train.small_runs import config, counting_text, small_model


class TestGradients:
    @pytest.mark.parametrize("max_grad_norm", [1.0, 0.0])
    def test_one_that_is_no_number_stops_the_run_before_its_step(self, tmp_path: Path, max_grad_norm: float) -> None:
        """The loss is a number at this step, so only the gradient tells."""
        trainer = EBFTTrainer(small_model(), config(tmp_path, max_grad_norm=max_grad_norm), counting_text())
        before = copy.deepcopy(trainer.model.state_dict())
        trainer.model.lm_head.weight.register_hook(lambda gradient: gradient * math.nan)
        with pytest.raises(TrainingDiverged, match="the gradient's norm is nan at step 1; try a lower learning_rate"):
            trainer.train()
        assert all(torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items())

    def test_no_evaluation_of_a_model_that_has_diverged(self, tmp_path: Path, monkeypatch: Any) -> None:
        """On a GPU numbers arrive late: an evaluation waits for them."""
        trainer = EBFTTrainer(small_model(), config(tmp_path), counting_text(), eval_dataset=counting_text())
        waited: list[bool] = []
        monkeypatch.setattr(trainer.deferred_checks, "run", lambda wait=False: waited.append(wait))
        trainer.evaluate()
        assert waited[0] is True


def test_no_trainer_uses_the_attention_kernel_that_returns_nan(tmp_path: Path) -> None:
    torch.backends.cuda.enable_cudnn_sdp(True)
    EBFTTrainer(small_model(), config(tmp_path), counting_text())
    assert not torch.backends.cuda.cudnn_sdp_enabled()


@pytest.mark.cuda
def test_gradients_of_torchs_attention_where_cudnn_returns_nan() -> None:
    """A mask, 64 tokens beyond a multiple of 128, and scores so low that exp(-score) overflows float32."""
    avoid_cudnn_attention()
    length, width = 192, 64
    q, k, v = (torch.randn(1, 1, length, width, device="cuda", dtype=torch.bfloat16) / 10 for _ in range(3))
    q[..., 0], k[..., 0] = 1.0, -120 * math.sqrt(width)
    for tensor in (q, k, v):
        tensor.requires_grad_()
    mask = torch.ones(length, length, dtype=torch.bool, device="cuda").tril()
    F.scaled_dot_product_attention(q, k, v, attn_mask=mask).square().sum().backward()
    for tensor in (q, k, v):
        assert tensor.grad is not None
        assert bool(tensor.grad.isfinite().all())


class TestGradientNorms:
    def said(self, norms: list[float], caplog: pytest.LogCaptureFixture) -> list[str]:
        seen = GradientNorms()
        for step, norm in enumerate(norms, 1):
            seen.see(norm, step)
        return [record.message for record in caplog.records]

    @pytest.mark.parametrize(
        "norms",
        [
            [20.0, 8.0, 5.0, 3.0, 2.0, 1.0, 900.0, 1.0],
            [0.0, 0.0, 0.0, 0.0, 0.0, 5.0, 0.0, 4.0],  # GRPO, where most answers get the same reward
            [1e6, 1e6, 1e6, 1e6, 2e6],
        ],
    )
    def test_what_is_usual(self, norms: list[float], caplog: pytest.LogCaptureFixture) -> None:
        assert self.said(norms, caplog) == []

    def test_noise_is_told_of_once_though_most_steps_are(self, caplog: pytest.LogCaptureFixture) -> None:
        """Seen in a run on a GPU whose memory was full: most steps, and the first of them, were noise."""
        norms = [617022.0, 8.6, 312191.0, 310704.0, 18.0, 321590.0, 272152.0, 412630.0]
        told = self.said(norms, caplog)
        assert len(told) == 1
        assert "the gradient's norm is 3.22e+05 at step 6, where it is usually about 18" in told[0]
