"""What `run.train` needs to know of a training method: EBFT here, SFT and RLVR in `baselines`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ebft import loading
from ebft.config.recipe import Recipe
from ebft.data.packing import SequenceDataset
from ebft.train.dry_run import describe
from ebft.train.trainer import EBFTTrainer


@dataclass(frozen=True)
class Loaded:
    """What a run begins with."""

    recipe: Recipe
    train_set: SequenceDataset
    validation_set: SequenceDataset | None
    model: Any
    tokenizer: Any


@dataclass(frozen=True)
class TrainingMethod:
    name: str
    title: str  # for the model card
    tags: str
    shown: Mapping[str, str]  # metrics beside the progress bar, by short names
    needs_anchors: bool  # the training text must have one
    build: Callable[[Loaded], Any]  # the trainer
    plan: Callable[[Loaded], list[str]]  # what --dry-run prints
    details: Callable[[Recipe], str]  # the settings in a sentence, for the model card


def _build(loaded: Loaded) -> EBFTTrainer:
    recipe = loaded.recipe
    return EBFTTrainer(
        loaded.model,
        recipe.training,
        loaded.train_set,
        loaded.validation_set,
        loaded.tokenizer,
        loading.peft_config(recipe),
    )


def _plan(loaded: Loaded) -> list[str]:
    return describe(loaded.recipe, loaded.train_set, loaded.validation_set, loaded.model, loaded.tokenizer)


def _details(recipe: Recipe) -> str:
    config = recipe.training
    return (
        f"{config.rows_per_step} sequences of "
        f"{config.context_length} tokens; rollouts of {config.horizon} tokens every {config.stride}, "
        f"{config.samples} samples at temperature {config.temperature}; whitening {config.whitening}, "
        f"alpha {config.alpha}, gamma {config.gamma}, learning rate {config.learning_rate}, seed {config.seed}."
    )


EBFT = TrainingMethod(
    "ebft",
    "Energy-Based Fine-Tuning",
    "[ebft, energy-based-fine-tuning]",
    {"reward": "reward", "ebft/cfm": "cfm", "ebft/cross_entropy": "ce", "ebft/distinct": "distinct"},
    True,
    _build,
    _plan,
    _details,
)
