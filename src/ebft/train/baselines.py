"""What the baselines share: `ebft sft` and `ebft rlvr` run TRL's trainers through the same `run.train` as EBFT.

TRL is imported only when a baseline runs; without it the error says what to install.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainingArguments

from ebft.config import ConfigError, EBFTConfig, nearest
from ebft.data.packing import SequenceDataset
from ebft.recipe import Recipe
from ebft.train import callbacks
from ebft.train.clock import Watch
from ebft.train.ruler import Passes, Ruler
from ebft.train.samples import write_table
from ebft.train.tasks import EvalTasks
from ebft.train.trainer import TrainingDiverged

# Settings of `ebft train` that say how EBFT trains and not how validation measures.
_ONLY_EBFT = ("gamma", "kl_weight", "rollout_batch_size", "max_reward", "compile_layers", "disable_dropout")


@dataclass(frozen=True)
class Method:
    """How `run.train` trains by something else than EBFT."""

    name: str
    words: str  # for the model card
    settings: type[EBFTConfig]
    shown: Mapping[str, str]  # metrics beside the progress bar
    build: Callable[[Recipe, SequenceDataset, SequenceDataset | None, Any, Any], Any]
    plan: Callable[[Recipe, SequenceDataset, SequenceDataset | None, Any, Any], None]
    details: Callable[[Recipe], str]


def method(name: str) -> Method:
    """`sft` or `rlvr`, if TRL is there."""
    if find_spec("trl") is None:
        raise ConfigError(f"ebft {name} needs trl; install it with `pip install ebft[baselines]`")
    _no_telemetry()
    return import_module(f"ebft.train.{name}").METHOD


def _no_telemetry() -> None:
    """TRL reports every trainer that is made to its makers; nobody asked our users."""
    from huggingface_hub import constants

    constants.HF_HUB_DISABLE_TELEMETRY = True


def check(recipe: Recipe) -> None:
    """What no baseline can do, said before a trainer is built."""
    _no_telemetry()
    args = recipe.training
    if args.world_size > 1 or args.n_gpu > 1:
        raise ConfigError(
            "training on several processes or GPUs is not supported yet; start one process with one GPU "
            "(CUDA_VISIBLE_DEVICES=0)"
        )
    if args.sharding is not None:
        raise ConfigError("fsdp works with `ebft train` only; leave it out")
    if args.feature_source == "average":
        raise ConfigError("feature_source='average' moves with the model, so it cannot measure baselines; use auto")
    if idle := [name for name in _ONLY_EBFT if name in recipe.given]:
        print(f"note: {', '.join(idle)} say how EBFT trains, and change nothing here", file=sys.stderr)


def trl_arguments(cls: Any, settings: Any, **own: Any) -> Any:
    """TRL's configuration: transformers' settings as they are, those that a baseline decides, then `trl_options`."""
    shared = {f.name: getattr(settings, f.name) for f in fields(TrainingArguments) if f.init}
    known = {f.name for f in fields(cls) if f.init}
    for name in settings.trl_options:
        if name in shared or name in own:
            raise ConfigError(
                f"trl_options holds {name!r}, which is a setting of its own or decided by ebft; take it out"
            )
        if name not in known:
            raise ConfigError(f"trl_options holds {name!r}, which TRL does not know{nearest(str(name), known)}")
    try:
        return cls(**{**shared, **own, **settings.trl_options})
    except TypeError as error:
        raise ConfigError(f"trl_options: {error}") from None


def equip(trainer: Any, recipe: Recipe, validation_set: SequenceDataset | None, tokenizer: Any) -> Any:
    """Give a trainer of TRL what `ebft train` has: ruler, counters, metrics file, whole checkpoints, tasks."""
    trainer.watch = Watch()
    trainer.passes = Passes(trainer.model)
    for callback in (callbacks.MetricsFile(), trainer.spent, Divergence(), callbacks.Checkpoints(trainer)):
        trainer.add_callback(callback)
    if validation_set is not None:
        trainer.ruler = Ruler(trainer.model, recipe.training, validation_set, tokenizer, trainer.args.device)
    elif recipe.training.eval_tasks:
        raise ConfigError("eval_tasks needs validation data; set validation_split or validation_dataset")
    if recipe.training.eval_tasks:
        trainer.add_callback(EvalTasks(trainer, recipe.training))
    return trainer


class Divergence(TrainerCallback):
    """Stops at a loss that is no number, before such a model is saved; TRL would go on."""

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        loss = (logs or {}).get("loss")
        if loss is not None and not math.isfinite(loss):
            raise TrainingDiverged(f"the loss is {loss} at step {state.global_step}; try a lower learning_rate")


class RulerSamples(TrainerCallback):
    """The table of samples that `ebft train` writes, from rollouts in the first validation sequence."""

    def __init__(self, trainer: Any, every: int) -> None:
        self.trainer, self.every = trainer, every

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        due = self.every and (state.global_step % self.every == 0 or state.global_step == 1)
        if due and self.trainer.ruler is not None and state.is_world_process_zero:
            example = self.trainer.ruler.example(self.trainer.model, state.global_step)
            write_table(Path(args.output_dir) / "samples", state.global_step, example, self.trainer.processing_class)
        self.trainer.spent.pause()


def steps_of(config: TrainingArguments, rows: int, per_step: int) -> tuple[int, int]:
    """Steps of the run and of an epoch."""
    an_epoch = max(-(-rows // per_step), 1)
    return (config.max_steps if config.max_steps > 0 else int(-(-an_epoch * config.num_train_epochs // 1))), an_epoch


def show(lines: Mapping[str, str]) -> None:
    width = max(map(len, lines))
    for name, value in lines.items():
        print(f"{name:<{width}}  {value}")
