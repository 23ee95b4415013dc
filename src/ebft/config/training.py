"""`EBFTConfig`: the settings of `ebft train` in one object, which transformers' Trainer takes as its arguments.

It joins the method's settings, ebft's own for running, and transformers' `TrainingArguments` (batch size, learning
rate, schedules, logging, saving, ...), some of them with the paper's values. Making one looks at the machine and
changes nothing: no process group is joined and no device is set up before a run starts (`runtime.processes.start`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self

import torch
from transformers import TrainingArguments

from ebft.config import parallel
from ebft.config.defaults import TransformersDefaults
from ebft.config.fields import at_least
from ebft.config.method import MethodConfig
from ebft.config.parallel import Sharding
from ebft.config.running import RunningConfig
from ebft.config.secrets import is_secret
from ebft.config.synonyms import suggestion
from ebft.errors import ConfigError, nearest
from ebft.method.measures import NAMES, smaller_is_better


@dataclass
class EBFTConfig(RunningConfig, MethodConfig, TransformersDefaults, TrainingArguments):  # type: ignore[misc]  # fsdp may be a bool
    sharding: Sharding | None = field(default=None, init=False, repr=False)  # what fsdp and fsdp_config come to
    trains_in_fp16: ClassVar[bool] = False

    def __new__(cls, *args: Any, **settings: Any) -> Self:
        """Python's own error about an unknown name would not say what it is called here."""
        known = [f.name for f in fields(cls) if f.init]
        for name in settings:
            if name not in known:
                raise TypeError(f"{cls.__name__} has no setting {name!r}{suggestion(name, known)}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        self.check_method()
        self.check_running()
        if not self.learning_rate >= 0:  # torch would say so only after the first evaluation
            raise ConfigError(f"learning_rate={self.learning_rate} must not be negative")
        at_least(self, 1, "per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps")
        if self.max_steps == 0:
            raise ConfigError("max_steps=0 trains nothing; use 1 or more, or -1 for num_train_epochs")
        if self.bf16_if_fast and _has_fast_bf16(self.use_cpu):
            self.bf16 = True
        if not self.use_cpu:
            parallel.check_enough_gpus(torch.cuda.device_count())
        if not torch.accelerator.is_available():
            # Said aloud: bf16 in a recipe for a GPU then loads on any machine, and several processes find each other.
            self.use_cpu = True
            self.dataloader_pin_memory = False  # there is nothing to pin memory for, and torch would warn
        parallel.check_not_wrapped(self)
        self.sharding = parallel.sharding_of(self)
        self.fsdp, self.fsdp_config = None, None
        if self.enable_jit_checkpoint:
            raise ConfigError("enable_jit_checkpoint=true: ebft saves on SIGTERM by itself; leave it out")
        if self.fp16 and not self.trains_in_fp16:
            raise ConfigError(
                "fp16=true is not supported: the loss is a mean over all tokens of a step, and gradients so small are "
                "lost in float16; use bf16=true, or float32"
            )
        if self.early_stopping_patience is not None and self.eval_strategy in ("no", False):
            raise ConfigError(
                f"early_stopping_patience={self.early_stopping_patience} needs evaluations; set eval_strategy=steps "
                "and eval_steps"
            )
        if self.load_best_model_at_end or self.save_strategy == "best" or self.early_stopping_patience is not None:
            self.metric_for_best_model = self.metric_for_best_model or "cfm"
        if self.metric_for_best_model is not None:
            self._check_metric(self.metric_for_best_model.removeprefix("eval_"))
            if self.greater_is_better is None:  # not transformers' rule: cross_entropy and cfm do not end with "loss"
                self.greater_is_better = not smaller_is_better(self.metric_for_best_model)
        self._complete = False
        TrainingArguments.__post_init__(self)
        self._complete = True
        _check_reporting(self.report_to)

    def _check_metric(self, name: str) -> None:
        """Transformers would look for it after the first evaluation."""
        known = (*NAMES, "reward")
        if name not in known and not name.startswith(tuple(f"{task}_" for task in self.eval_tasks)):
            raise ConfigError(
                f"metric_for_best_model={self.metric_for_best_model!r} is no metric of validation; there is "
                f"{', '.join(known)}, and <task>_<metric> of eval_tasks{nearest(name, known)}"
            )

    @property
    def rows_per_step(self) -> int:
        """Rows of a batch that one optimiser step sees: micro-batches of all processes together."""
        return self.per_device_train_batch_size * self.gradient_accumulation_steps * self.world_size

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled into checkpoints (training_args.bin): everything but secrets."""
        return {name: None if is_secret(name) else value for name, value in vars(self).items()}

    # ---- devices and processes, which transformers would set up while the object is made

    @property
    def started(self) -> bool:
        """Whether devices are set up and processes joined."""
        return "_setup_devices" in vars(self)

    @property
    def device(self) -> torch.device:
        if not self._complete:
            return torch.device("cpu")  # asked for by transformers on the way, and not looked at
        # With several processes transformers says "cpu:0"; 5.17 loads optimisers to there, which torch refuses.
        found = super().device
        return torch.device("cpu") if found.type == "cpu" else found

    @property
    def world_size(self) -> int:
        return super().world_size if self.started else int(os.environ.get("WORLD_SIZE") or 1)

    @property
    def process_index(self) -> int:
        return super().process_index if self.started else int(os.environ.get("RANK") or 0)

    @property
    def local_process_index(self) -> int:
        return super().local_process_index if self.started else int(os.environ.get("LOCAL_RANK") or 0)


def _check_reporting(names: Any) -> None:
    """Known and installed, said here and in one line; transformers would find out when the trainer is built."""
    from transformers.integrations.integration_utils import (
        INTEGRATION_TO_CALLBACK,
        get_available_reporting_integrations,
    )

    for name in [names] if isinstance(names, str) else names or []:
        if not isinstance(name, str) or name in ("all", "none"):
            continue
        if name not in INTEGRATION_TO_CALLBACK:
            raise ConfigError(f"report_to={name!r} is not known{nearest(name, INTEGRATION_TO_CALLBACK)}")
        if name not in get_available_reporting_integrations():
            raise ConfigError(f"report_to={name!r} needs a package that is not installed; try `pip install {name}`")


def _has_fast_bf16(use_cpu: bool) -> bool:
    if torch.cuda.is_available() and not use_cpu:
        return torch.cuda.is_bf16_supported(including_emulation=False)
    has_tiles = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return has_tiles is not None and bool(has_tiles())
