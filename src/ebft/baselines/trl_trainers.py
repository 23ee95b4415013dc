"""What the baselines share: `ebft sft` and `ebft rlvr` run TRL's trainers through the same `run.train` as EBFT, with
EBFT's validation. TRL is imported only when a baseline runs; without it the error says what to install."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Self

import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import TrainingArguments

from ebft.config.method import ONLY_EBFT
from ebft.config.recipe import Recipe
from ebft.config.settings import Values
from ebft.config.training import RLVRSettings, SFTSettings
from ebft.data.packing import collate, end_token_ids, to_device
from ebft.errors import ConfigError, how_to_install, nearest
from ebft.iteration import prepare_window
from ebft.loading import feature_network, peft_config
from ebft.model.backbone import copy_in_dtype, evaluating, prepare_model
from ebft.runtime import processes
from ebft.train import report
from ebft.train.measured import Inputs, Measured
from ebft.train.networks import FlopCounter
from ebft.train.sequences import Loaded, warn


def method(name: str) -> type[Measured]:
    """`sft` or `rlvr`, if TRL is there."""
    if find_spec("trl") is None:
        raise ConfigError(f"ebft {name} needs trl; {how_to_install('baselines')}")
    from huggingface_hub import constants

    constants.HF_HUB_DISABLE_TELEMETRY = True  # TRL reports every trainer to its makers; nobody asked our users
    return getattr(import_module(f"ebft.baselines.{name}"), f"Measured{name.upper()}")


def check(recipe: Recipe) -> None:
    """What no baseline can do, said before a trainer is built."""
    args = recipe.training
    if args.sharding is not None:
        raise ConfigError("fsdp works with `ebft train` only; leave it out")
    if args.feature_source == "average":
        raise ConfigError("feature_source='average' moves with the model, so it cannot measure baselines; use auto")
    if idle := [name for name in ONLY_EBFT if name in recipe.given]:
        warn(f"{', '.join(idle)}: used by EBFT training only; ignored here")


def trl_arguments(cls: type[Any], settings: SFTSettings | RLVRSettings, **own: object) -> Any:
    """TRL's configuration: transformers' settings as they are, those that a baseline decides, then `trl_options`."""
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


class Baseline(Measured):
    """Goes before a trainer of TRL in a class."""

    flops: FlopCounter

    @classmethod
    def made(cls, loaded: Loaded, arguments: TrainingArguments, rows: Dataset, **own: object) -> Self:
        """TRL's trainer, with validation against a network that is frozen now, and what all runs have."""
        settings, tokenizer = loaded.recipe.training, loaded.tokenizer
        if tokenizer.pad_token is None:  # what TRL would take; padding is masked by length
            tokenizer.pad_token = tokenizer.eos_token
        given: Values = {"processing_class": tokenizer, "peft_config": peft_config(loaded.recipe), **own}
        if loaded.validation_set is not None:
            # Never looked at: `evaluate` validates as EBFT does. transformers wants one where it is to evaluate.
            given["eval_dataset"] = rows.select([0])
        self = cls(model=loaded.model, args=arguments, train_dataset=rows, **given)
        self.settings, self.held_out = settings, loaded.validation_set
        self.flops = FlopCounter(self.model)
        if self.held_out is not None:
            prepare_model(self.model)
            self.features = feature_network(self.model, settings, tokenizer)
            self.end_token_ids = end_token_ids(tokenizer, settings.completions_end)
        elif settings.eval_tasks:
            raise ConfigError("eval_tasks needs validation data; set validation_split or validation_dataset")
        self.equip()
        return self

    @contextmanager
    def computing(self) -> Iterator[Any]:
        """An adapter's model computes with autocast; other models, as with EBFT, on a copy of the weights in bf16."""
        bf16, adapted = self.settings.bf16, hasattr(self.model, "disable_adapter")
        with torch.autocast(self.settings.device.type, torch.bfloat16, enabled=bf16 and adapted):
            yield copy_in_dtype(self.model, torch.bfloat16)[0] if bf16 and not adapted else self.model

    def training_step(self, model: nn.Module, inputs: Inputs, num_items_in_batch: Any = None) -> Tensor:
        loss = super().training_step(model, inputs, num_items_in_batch)
        self.stop_beyond("loss", processes.sum_over_processes({"loss": loss.detach()})["loss"])
        return loss

    @torch.no_grad()
    def sample_lines(self) -> list[str]:
        """Rollouts in the first validation sequence."""
        if self.held_out is None or self.features is None:
            return []
        batch, step = to_device(collate([self.held_out[0]]), self.settings.device), self.state.global_step
        with evaluating(self.model), self.computing() as model:
            window = prepare_window(model, self.features, [batch], self.settings, step, self.end_token_ids)
        return report.sample_lines(window.example, self.processing_class)

    def create_model_card(self, *args: object, **kwargs: object) -> None:
        """TRL would write one into the output folder at every checkpoint; ebft writes its own at the end."""
