"""What a person sees while a run trains: a progress bar, or a line for every log entry."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Any

from transformers import ProgressCallback, TrainerCallback

logger = logging.getLogger(__name__)

# Seconds between two drawings of the progress bar where it is not redrawn in place; lines tell of the steps.
_BAR_IN_A_FILE = 60


def step_lines(step: int, logs: Mapping[str, Any], shown: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """What a log entry has of the metrics to show, and the lines that say it."""
    found = {short: _number(logs[name]) for name, short in shown.items() if name in logs}
    lines = [f"step {step}: " + ", ".join(f"{name} {value}" for name, value in found.items())] if found else []
    evaluated = {k.removeprefix("eval_"): v for k, v in logs.items() if k.startswith("eval_") and not k.endswith("_se")}
    if "cfm" in evaluated:
        parts = [f"{name} {value:.4f}" for name, value in evaluated.items() if name != "runtime"]
        lines.append(f"step {step}: " + ", ".join(parts))
    return found, lines


def _number(value: Any) -> str:
    return str(value) if isinstance(value, int) else f"{float(value):.3f}"


class LiveProgress(ProgressCallback):
    """One progress bar with the terms that matter beside it, instead of a dictionary per line."""

    def __init__(self, shown: Mapping[str, str]) -> None:
        super().__init__()
        self.shown = shown
        self.in_terminal = sys.stderr.isatty()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        if self.training_bar is None:
            return
        # A run that resumes begins there; else its speed would count steps that it did not take.
        self.training_bar.initial = self.training_bar.n = self.current_step = state.global_step
        if self.in_terminal:
            self.training_bar.refresh()
        else:
            self.training_bar.mininterval = _BAR_IN_A_FILE

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero or self.training_bar is None or not logs:
            return
        shown, lines = step_lines(state.global_step, logs, self.shown)
        if shown:
            self.training_bar.set_postfix(shown, refresh=self.in_terminal)
        if self.in_terminal:
            for line in lines[1:] if shown else lines:  # the bar says the first
                self.training_bar.write(line, file=sys.stderr)
        elif lines:
            self.training_bar.clear()
            logger.info("\n".join(lines))


class StepLines(TrainerCallback):
    """Without a progress bar: a short line for every log entry."""

    def __init__(self, shown: Mapping[str, str]) -> None:
        self.shown = shown

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            for line in step_lines(state.global_step, logs or {}, self.shown)[1]:
                logger.info(line)
