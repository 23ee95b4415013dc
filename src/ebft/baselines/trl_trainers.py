"""What the baselines share: `ebft sft` and `ebft rlvr` run TRL's trainers through the same `run.train` as EBFT.

TRL is imported only when a baseline runs; without it the error says what to install.
"""

from __future__ import annotations

import logging
import time
from dataclasses import fields
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import TrainerCallback, TrainingArguments

from ebft.baselines.validator import Validator
from ebft.config.baseline_options import ONLY_EBFT
from ebft.config.recipe import Recipe
from ebft.data.packing import SequenceDataset
from ebft.errors import ConfigError, how_to_install, nearest
from ebft.method.measures import as_logged, estimates
from ebft.model.attention import avoid_cudnn_attention
from ebft.model.backbone import evaluating
from ebft.runtime import processes
from ebft.runtime.timing import DeferredChecks
from ebft.train import callbacks
from ebft.train.costs import CostTracker, FlopCounter
from ebft.train.divergence import check_gradients, finite
from ebft.train.eval_callback import EvalTasks
from ebft.train.samples import write_table
from ebft.train.training_method import TrainingMethod
from ebft.validation import Evaluated

logger = logging.getLogger(__name__)

_WAY_OUT = "try a lower learning_rate"


def method(name: str) -> TrainingMethod:
    """`sft` or `rlvr`, if TRL is there."""
    if find_spec("trl") is None:
        raise ConfigError(f"ebft {name} needs trl; {how_to_install('baselines')}")
    _no_telemetry()
    return import_module(f"ebft.baselines.{name}").METHOD


def _no_telemetry() -> None:
    """TRL reports every trainer that is made to its makers; nobody asked our users."""
    from huggingface_hub import constants

    constants.HF_HUB_DISABLE_TELEMETRY = True


def check(recipe: Recipe) -> None:
    """What no baseline can do, said before a trainer is built."""
    _no_telemetry()
    args = recipe.training
    processes.check_one_gpu(args.n_gpu)
    if args.sharding is not None:
        raise ConfigError("fsdp works with `ebft train` only; leave it out")
    if args.feature_source == "average":
        raise ConfigError("feature_source='average' moves with the model, so it cannot measure baselines; use auto")
    idle = [name for name in ONLY_EBFT if name in recipe.given]
    if idle and processes.rank() == 0:
        logger.warning("%s: used by EBFT training only; ignored here", ", ".join(idle))


def trl_arguments(cls: Any, settings: Any, **own: Any) -> Any:
    """TRL's configuration: transformers' settings as they are, those that a baseline decides, then `trl_options`."""
    shared = {f.name: getattr(settings, f.name) for f in fields(TrainingArguments) if f.init}
    if shared["ddp_find_unused_parameters"] is None:
        shared["ddp_find_unused_parameters"] = False  # there are none; torch would search for them and warn
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


def equip(
    trainer: Any, recipe: Recipe, validation_set: SequenceDataset | None, tokenizer: Any, *state: TrainerCallback
) -> Any:
    """Give a trainer of TRL what `ebft train` has: validation, counters, metrics file, complete checkpoints, tasks.

    `state` are callbacks that write something into checkpoints: before these are marked as complete.
    """
    callbacks.keep_tensorboard_here(trainer)
    avoid_cudnn_attention()
    trainer.deferred_checks = DeferredChecks()
    check_gradients(trainer, _WAY_OUT)
    trainer.flops = FlopCounter(trainer.model)
    for callback in (
        callbacks.MetricsFile(),
        callbacks.LastStepLogged(),
        callbacks.WarmUpAdvice(),
        trainer.costs,
        *state,
        callbacks.Checkpoints(trainer),
    ):
        trainer.add_callback(callback)
    if validation_set is not None:
        trainer.validator = Validator(trainer.model, recipe.training, validation_set, tokenizer, trainer.args.device)
    elif recipe.training.eval_tasks:
        raise ConfigError("eval_tasks needs validation data; set validation_split or validation_dataset")
    if recipe.training.eval_tasks:
        trainer.add_callback(EvalTasks(trainer, recipe.training))
    return trainer


class Measured:
    """Goes before a trainer of TRL in a class: evaluates as EBFT does, logs its costs, stops when it diverges."""

    validator: Validator | None = None
    costs: CostTracker
    flops: FlopCounter
    deferred_checks: DeferredChecks
    evaluated: Evaluated | None = None  # the last evaluation

    def training_step(self: Any, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        loss = super().training_step(model, inputs, num_items_in_batch)  # type: ignore[misc]
        self.deferred_checks.run()
        # The sum, so that all processes stop or none does.
        total = processes.sum_over_processes({"loss": loss.detach()})["loss"]
        self.deferred_checks.add(total, finite("loss", self.state.global_step + 1, _WAY_OUT))
        return loss

    def evaluate(
        self: Any, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        if self.validator is None:
            raise ConfigError("evaluation needs validation data; set validation_split or validation_dataset")
        self.deferred_checks.run(wait=True)  # a model that has diverged is not worth measuring
        start = time.perf_counter()
        records = self.validator.measure(self.model)
        metrics = as_logged(estimates(records), metric_key_prefix)
        metrics[f"{metric_key_prefix}_runtime"] = time.perf_counter() - start
        with evaluating(self.model):  # TRL asks the model whether this is about training
            self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        self.evaluated = Evaluated(self.state.global_step, metrics, records)
        return metrics

    def log(self: Any, logs: dict[str, float], start_time: float | None = None) -> None:
        logs.update(self.costs.totals())
        super().log(logs, start_time)  # type: ignore[misc]

    def get_batch_samples(self: Any, epoch_iterator: Any, num_batches: int, device: Any) -> Any:
        if self.state.global_step >= self.state.max_steps:
            # Resumed from the last step's checkpoint: the Trainer would take one more step before it looks.
            self.control.should_training_stop = True
            return [], None
        return super().get_batch_samples(epoch_iterator, num_batches, device)  # type: ignore[misc]

    def compute_model(self: Any) -> Any:
        """The model to compute with, for `eval_tasks`."""
        return self.model

    @property
    def features(self) -> Any:
        return self.validator.features if self.validator is not None else None

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """TRL would write one into the output folder at every checkpoint; ebft writes its own at the end."""


class ValidationSamples(TrainerCallback):
    """The table of samples that `ebft train` writes, from rollouts in the first validation sequence."""

    def __init__(self, trainer: Any, every: int) -> None:
        self.trainer, self.every = trainer, every

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        due = self.every and (state.global_step % self.every == 0 or state.global_step == 1)
        if due and self.trainer.validator is not None:
            example = self.trainer.validator.example(self.trainer.model, state.global_step)  # all processes take part
            if state.is_world_process_zero:
                folder = Path(args.output_dir) / "samples"
                write_table(folder, state.global_step, example, self.trainer.processing_class)
        self.trainer.costs.pause()
