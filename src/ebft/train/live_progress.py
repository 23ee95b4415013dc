"""What a person sees while a run trains: a progress bar, or a line for every log entry."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from transformers import ProgressCallback, TrainerCallback

from ebft.runtime.messages import progress

logger = logging.getLogger(__name__)


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
    """In a terminal: one progress bar with the terms that matter beside it, instead of a dictionary per line."""

    def __init__(self, shown: Mapping[str, str]) -> None:
        super().__init__()
        self.shown = shown

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        if self.training_bar is None:
            return
        # A run that resumes begins there; else its speed would count steps that it did not take.
        self.training_bar.initial = self.training_bar.n = self.current_step = state.global_step
        self.training_bar.refresh()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero or self.training_bar is None or not logs:
            return
        shown, lines = step_lines(state.global_step, logs, self.shown)
        if shown:
            self.training_bar.set_postfix(shown)
        for line in lines[1:] if shown else lines:  # the bar says the first
            self.training_bar.write(line, file=sys.stderr)


class StepLines(TrainerCallback):
    """Without a progress bar: a short line for every log entry, and in a log file how far it is, once a minute."""

    def __init__(self, shown: Mapping[str, str]) -> None:
        self.shown = shown
        self.minutes = ExitStack()
        self.advance: Callable[[int], None] = lambda steps: None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero and not sys.stderr.isatty():
            steps = progress("training", state.max_steps, state.global_step, leave=False)
            self.advance = self.minutes.enter_context(steps)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.advance(1)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.minutes.close()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            for line in step_lines(state.global_step, logs or {}, self.shown)[1]:
                logger.info(line)
