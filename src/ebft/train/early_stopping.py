"""Stops a run whose validation no longer gets better.

transformers' own callback counts evaluations in memory, so that a resumed run would begin to count anew. This one looks
at the log, which checkpoints hold.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from transformers import TrainerCallback

logger = logging.getLogger(__name__)


class EarlyStopping(TrainerCallback):
    def __init__(self, patience: int, threshold: float) -> None:
        self.patience, self.threshold = patience, threshold

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        name = f"eval_{args.metric_for_best_model.removeprefix('eval_')}"
        values = [entry[name] for entry in state.log_history if name in entry]
        if values and evaluations_since_best(values, args.greater_is_better, self.threshold) >= self.patience:
            control.should_training_stop = True
            if state.is_world_process_zero:
                logger.info(f"stopped at step {state.global_step}: no better {name} in {self.patience} evaluations")


def evaluations_since_best(values: Sequence[float], greater_is_better: bool, threshold: float = 0.0) -> int:
    best, since = values[0], 0
    for value in values[1:]:
        gain = value - best if greater_is_better else best - value
        best, since = (value, 0) if gain > threshold else (best, since + 1)
    return since
