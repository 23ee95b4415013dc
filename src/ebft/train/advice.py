"""What a run says about itself: that it learns nothing, and what to try. Each advice is given once."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from statistics import fmean, variance
from typing import Any

from transformers import TrainerCallback

logger = logging.getLogger(__name__)

IN_A_ROW = 3  # log entries that say the same before it is said
WITHOUT_WARM_UP = ("constant", "greedy", "reduce_lr_on_plateau")  # schedules
PART = 10  # log entries at the start and at the end of a run that are compared
Entry = dict[str, Any]


class Advice(TrainerCallback):
    """Looks at the log of EBFT and of the baselines; what a method does not log, it gets no advice about."""

    def __init__(self) -> None:
        self.given: set[Callable[..., str | None]] = set()
        self.entries: list[Entry] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Entry | None = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero or not logs:
            return
        self.entries.append(logs)
        for rule in (equal_rewards, equal_completions, reward_does_not_move, cross_entropy_rises):
            if rule not in self.given and (words := rule(self.entries, args)) is not None:
                self.given.add(rule)
                logger.warning(f"step {state.global_step}: {words}")


class WarmUpAdvice(TrainerCallback):
    """Of every trainer, also in a program of somebody's own: a first try with one step would change nothing."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero and (words := only_warm_up(args, state.max_steps)) is not None:
            logger.warning(words)


def only_warm_up(args: Any, steps: int) -> str | None:
    """The learning rate of the first step of a warm-up is 0."""
    warm_up = args.get_warmup_steps(steps)
    if warm_up < max(steps, 1) or args.lr_scheduler_type in WITHOUT_WARM_UP:
        return None
    last = args.learning_rate * (steps - 1) / warm_up
    return (
        f"warm-up takes {'the only step' if steps == 1 else f'all {steps} steps'}: the learning rate is 0 at first and "
        f"{last:.3g} at last, never {args.learning_rate:g}; set warmup_steps=0, or train for more steps"
    )


def equal_rewards(entries: list[Entry], args: Any) -> str | None:
    """GRPO compares the answers to one prompt; where all get the same reward, there is nothing to compare."""
    shares = _values(entries, "frac_reward_zero_std")[-IN_A_ROW:]
    if len(shares) < IN_A_ROW or min(shares) < 1:
        return None
    reward = _values(entries, "reward")[-1:]
    what = "right" if reward and reward[0] >= 1 else "wrong" if reward == [0] else "alike"
    return (
        f"all answers to a prompt get the same reward ({what}), for every prompt: there is no gradient. Look at "
        f"samples/; try {'harder' if what == 'right' else 'easier'} prompts, more generations, a higher "
        "generation_temperature, or start from a fine-tuned model"
    )


def equal_completions(entries: list[Entry], args: Any) -> str | None:
    """`ebft/distinct` is 1 / samples if all completions of an anchor are equal."""
    shares = _values(entries, "ebft/distinct")[-IN_A_ROW:]
    least = 1 / args.samples if shares else 1.0
    if len(shares) < IN_A_ROW or args.samples < 2 or max(shares) > least + 0.1 * (1 - least):
        return None
    return (
        f"nearly all completions of an anchor are equal (ebft/distinct {shares[-1]:.2f}, {least:.2f} is the least): "
        f"there is little to learn from; raise temperature (now {args.temperature:g}) or horizon (now {args.horizon})"
    )


def reward_does_not_move(entries: list[Entry], args: Any) -> str | None:
    """The first and the last entries differ by less than the error of their difference."""
    rewards = [e["reward"] for e in entries if "ebft/distinct" in e and math.isfinite(e.get("reward", math.nan))]
    if len(rewards) < 2 * PART or len(rewards) % PART:  # looked at now and then, not after every step
        return None
    first, last = rewards[:PART], rewards[-PART:]
    change, error = fmean(last) - fmean(first), math.sqrt((variance(first) + variance(last)) / PART)
    if change > error:
        return None
    return (
        f"the reward has not risen ({fmean(first):.3f} at first, {fmean(last):.3f} now, ± {error:.3f}); raise "
        f"learning_rate (now {args.learning_rate:g}), or train longer"
    )


def cross_entropy_rises(entries: list[Entry], args: Any) -> str | None:
    found = [e for e in entries if math.isfinite(e.get("eval_cross_entropy") or math.nan)]
    if len(found) < 2:
        return None
    first, last = found[0]["eval_cross_entropy"], found[-1]["eval_cross_entropy"]
    if last - first <= 2 * (found[-1].get("eval_cross_entropy_se") or 0.0) or last <= first:
        return None
    remedy = "lower learning_rate, or train for fewer steps"
    if hasattr(args, "gamma"):
        remedy = f"raise gamma (now {args.gamma:g}), or {remedy}"
    return f"cross-entropy on held-out text has risen from {first:.3f} to {last:.3f}; {remedy}"


def _values(entries: list[Entry], name: str) -> list[float]:
    return [entry[name] for entry in entries if name in entry]
