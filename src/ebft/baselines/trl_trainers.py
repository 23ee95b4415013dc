"""What the baselines share: `ebft sft` and `ebft rlvr` run TRL's trainers through the same `run.train` as EBFT, with
EBFT's validation. TRL is imported only when a baseline runs; without it the error says what to install."""

from __future__ import annotations

import logging
import time
from dataclasses import fields
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback, TrainingArguments

from ebft import validation
from ebft.config.method import ONLY_EBFT
from ebft.config.recipe import Recipe
from ebft.data import packing
from ebft.data.packing import collate, end_token_ids, to_device
from ebft.errors import ConfigError, how_to_install, nearest
from ebft.iteration import prepare_window
from ebft.loading import feature_network
from ebft.method.measures import Record, as_logged, estimates
from ebft.model.attention import avoid_cudnn_attention
from ebft.model.backbone import evaluating, prepare_model
from ebft.model.working_copy import WorkingCopy
from ebft.runtime import processes
from ebft.runtime.timing import DeferredChecks
from ebft.train import callbacks
from ebft.train.callbacks import check_gradients, finite
from ebft.train.costs import CostTracker, FlopCounter
from ebft.train.run import TrainingMethod
from ebft.train.run_folder import BeforeAfter
from ebft.train.sequences import Loaded

logger = logging.getLogger(__name__)

_WAY_OUT = "try a lower learning_rate"


def method(name: str) -> TrainingMethod:
    """`sft` or `rlvr`, if TRL is there."""
    if find_spec("trl") is None:
        raise ConfigError(f"ebft {name} needs trl; {how_to_install('baselines')}")
    from huggingface_hub import constants

    constants.HF_HUB_DISABLE_TELEMETRY = True  # TRL reports every trainer to its makers; nobody asked our users
    return import_module(f"ebft.baselines.{name}").METHOD


def check(recipe: Recipe) -> None:
    """What no baseline can do, said before a trainer is built."""
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
    own |= {"save_log_spaced": settings.save_log_spaced, "eval_tasks_every": settings.eval_tasks_every}
    shared = {f.name: getattr(settings, f.name) for f in fields(TrainingArguments) if f.init}
    if shared["ddp_find_unused_parameters"] is None:
        shared["ddp_find_unused_parameters"] = False  # there are none; torch would search for them and warn
    known = {f.name for f in fields(cls) if f.init}
    for name in settings.trl_options:
        if name in shared or name in own:
            raise ConfigError(f"trl_options holds {name!r}, a setting of its own or decided by ebft; take it out")
        if name not in known:
            raise ConfigError(f"trl_options holds {name!r}, which TRL does not know{nearest(str(name), known)}")
    return cls(**{**shared, **own, **settings.trl_options})


def equip(trainer: Any, loaded: Loaded, name: str, *state: TrainerCallback) -> Any:
    """Give a trainer of TRL what `ebft train` has: validation, counters, metrics file, complete checkpoints, tasks.

    `state` are callbacks that write something into checkpoints: before these are marked as complete.
    """
    settings = loaded.recipe.training
    callbacks.keep_tensorboard_here(trainer)
    avoid_cudnn_attention()
    trainer.deferred_checks = DeferredChecks()
    check_gradients(trainer, _WAY_OUT)
    trainer.flops = FlopCounter(trainer.model)
    own = [callbacks.MetricsFile(), trainer.costs, *state, callbacks.Checkpoints(trainer)]
    if loaded.validation_set is not None:
        trainer.validator = Validator(trainer.model, loaded, trainer.args.device)
    elif settings.eval_tasks:
        raise ConfigError("eval_tasks needs validation data; set validation_split or validation_dataset")
    if settings.eval_tasks:
        own.append(callbacks.EvalTasks(trainer, settings.eval_tasks, settings.eval_task_options))
    trainer.before_after = BeforeAfter(trainer, name)
    for callback in (*own, trainer.before_after):
        trainer.add_callback(callback)
    return trainer


class Measured:
    """Goes before a trainer of TRL in a class: evaluates as EBFT does, logs its costs, stops when it diverges."""

    validator: Validator | None = None
    costs: CostTracker
    flops: FlopCounter
    deferred_checks: DeferredChecks
    evaluated: validation.Evaluated | None = None  # the last evaluation

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
        self.evaluated = validation.Evaluated(self.state.global_step, metrics, records)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
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

    def validation_identity(self) -> dict[str, Any]:
        assert self.validator is not None
        return validation.identity(self.validator.config, self.validator.features, self.validator.dataset)

    def example(self: Any) -> dict[str, Tensor] | None:
        """Rollouts in the first validation sequence, for the table of samples."""
        found = None if self.validator is None else self.validator.example(self.model, self.state.global_step)
        self.costs.pause()
        return found

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """TRL would write one into the output folder at every checkpoint; ebft writes its own at the end."""


class Validator:
    """EBFT's validation: measures a model on the validation sequences, against a network that is frozen now."""

    def __init__(self, model: Any, loaded: Loaded, device: torch.device) -> None:
        assert loaded.validation_set is not None
        self.config, self.dataset, self.device = loaded.recipe.training, loaded.validation_set, device
        prepare_model(model)
        self.features = feature_network(model, self.config, loaded.tokenizer)
        self.end_token_ids = end_token_ids(loaded.tokenizer, self.config.completions_end)
        self._copy: WorkingCopy | None = None

    def _compute_model(self, model: Any) -> Any:
        """As EBFTTrainer computes: with bf16, on a copy of the weights in bf16. An adapter's model uses autocast.

        The copy is kept, as EBFTTrainer's is: graphs of its passes serve the next validation too.
        """
        if not self.config.bf16 or hasattr(model, "disable_adapter"):
            return model
        if self._copy is None or self._copy.trained is not model:
            self._copy = WorkingCopy(model)
        else:
            self._copy.refresh()
        return self._copy.model

    def _autocast(self, model: Any) -> Any:
        enabled = self.config.bf16 and hasattr(model, "disable_adapter")
        return torch.autocast(self.device.type, torch.bfloat16, enabled=enabled)

    @torch.no_grad()
    def measure(self, model: Any) -> list[Record]:
        """A record of each sequence."""
        loader, rows = packing.evaluation_loader(self.config, self.dataset), len(self.dataset)
        with self._autocast(model):
            model = self._compute_model(model)
            ends, device = self.end_token_ids, self.device
            return validation.validate(model, self.features, loader, self.config, ends, device, rows)

    @torch.no_grad()
    def example(self, model: Any, step: int) -> dict[str, Tensor]:
        batch = to_device(collate([self.dataset[0]]), self.device)
        with evaluating(model), self._autocast(model):
            model = self._compute_model(model)
            return prepare_window(model, self.features, [batch], self.config, step, self.end_token_ids).example
