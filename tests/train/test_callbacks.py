"""What happens beside training: the metrics file, checkpoints, the moving average, samples."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebft import EBFTTrainer
from tests.train.small_runs import config, counting_text, small_model


@pytest.mark.parametrize("metric", ["cfm", "whitened_proxy"])
def test_the_best_checkpoint_is_the_best(tmp_path: Path, metric: str) -> None:
    """Smaller is better but for the proxy and the reward, and the best one survives the limit."""
    args = config(
        tmp_path,
        max_steps=6,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="steps",
        save_steps=2,
        save_total_limit=1,
        load_best_model_at_end=True,
        metric_for_best_model=metric,
        learning_rate=3e-3,
    )
    trainer = EBFTTrainer(small_model(), args, counting_text(), counting_text(documents=8, seed=1))
    trainer.train()
    seen = {e["step"]: e[f"eval_{metric}"] for e in trainer.state.log_history if f"eval_{metric}" in e}
    best = (max if metric == "whitened_proxy" else min)(seen, key=lambda step: seen[step])
    assert trainer.state.best_model_checkpoint == str(tmp_path / f"checkpoint-{best}")
    assert (tmp_path / f"checkpoint-{best}" / "COMPLETE").exists()
    assert trainer.evaluate()[f"eval_{metric}"] == pytest.approx(seen[best], rel=1e-5)
