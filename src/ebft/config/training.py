"""`EBFTConfig`: the settings of `ebft train` in one object, which transformers' Trainer takes as its arguments.

Making one looks at the machine and changes nothing: no process group is joined and no device is set up before a run
starts (`runtime.processes.start`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from transformers import TrainingArguments
from transformers.integrations import integration_utils

from ebft.config.data import RunningConfig
from ebft.config.method import MethodConfig
from ebft.config.settings import check
from ebft.errors import ConfigError, nearest
from ebft.method.measures import NAMES, smaller_is_better


@dataclass(frozen=True)
class Sharding:
    """How a model is sharded over the processes (FSDP2)."""

    reshard_after_forward: bool = True  # free a layer's gathered weights after every forward pass


@dataclass
class EBFTConfig(RunningConfig, MethodConfig, TrainingArguments):  # type: ignore[misc]
    """The method's settings, ebft's own for running, and transformers' (batches, schedules, logging, saving, ...)."""

    trains_in_fp16: ClassVar[bool] = False
    sharding: Sharding | None = field(default=None, init=False, repr=False)  # what fsdp and fsdp_config come to

    def __post_init__(self) -> None:
        self.check_method()
        RunningConfig.__post_init__(self)
        check(self, EBFTConfig, gradient_accumulation_steps=1, seed=0, data_seed=0)
        if self.max_steps == 0:
            raise ConfigError("max_steps=0 trains nothing; use 1 or more, or -1 for num_train_epochs")
        # What transformers or `accelerate launch` would do beside or instead of ebft, without a word.
        for name in ("deepspeed", "parallelism_config", "enable_jit_checkpoint"):
            if getattr(self, name) or os.environ.get(f"ACCELERATE_USE_{name.upper()}", "false") not in ("false", "0"):
                raise ConfigError(f"{name} is not supported; leave it out, and use fsdp=full_shard to shard a model")
        if self.fp16 and (self.fsdp or not self.trains_in_fp16):  # gradients of a mean over a step's tokens are lost
            raise ConfigError("fp16=true is not supported: gradients are too small for it; use bf16=true, or float32")
        self.bf16 = self.bf16 or (self.bf16_if_fast and _has_fast_bf16(self.use_cpu))
        if not torch.accelerator.is_available():
            # Said aloud: bf16 in a recipe for a GPU then loads on any machine, and several processes find each other.
            self.use_cpu = True
            self.dataloader_pin_memory = False  # there is nothing to pin memory for, and torch would warn
        self.sharding = self._sharding()
        self.fsdp, self.fsdp_config = None, None  # transformers and accelerate must not shard a second time
        self._choose_the_best()
        self.report_to = "none" if self.report_to is None else self.report_to
        self._complete = False
        TrainingArguments.__post_init__(self)
        self._complete = True
        there = integration_utils.get_available_reporting_integrations()
        if missing := [name for name in self.report_to if name not in there]:  # else found after loading everything
            raise ConfigError(f"report_to={missing[0]!r} is not known or not installed{nearest(missing[0], there)}")

    def _sharding(self) -> Sharding | None:
        """What fsdp asks for. Transformers' FSDP knows no CPUs, adds gradients up in bf16, and shards only when
        training starts, after the frozen network was copied and the first evaluation was made."""
        if self.fsdp in (None, False, "", "false"):
            return None
        options: Any = self.fsdp_config or {}  # or the name of a file
        known = isinstance(options, dict) and not options.keys() - {"version", "reshard_after_forward"}
        if (
            self.fsdp not in (True, "true", "full_shard", "shard_grad_op")
            or not known
            or options.get("version", 2) != 2
        ):
            raise ConfigError(
                f"fsdp={self.fsdp!r} with fsdp_config={self.fsdp_config!r} is not supported; use fsdp=full_shard or "
                "shard_grad_op, and of options version (2) and reshard_after_forward"
            )
        for name in ("eval_tasks", "show_prompts"):
            if getattr(self, name):
                raise ConfigError(f"{name} needs the whole model in one process; leave it out with fsdp")
        return Sharding(bool(options.get("reshard_after_forward", self.fsdp != "shard_grad_op")))

    def _choose_the_best(self) -> None:
        """By which metric, and in which direction: transformers would look for it after the first evaluation."""
        stops = self.early_stopping_patience is not None
        if stops and self.eval_strategy in ("no", False):
            raise ConfigError("early_stopping_patience needs evaluations; set eval_strategy=steps and eval_steps")
        if self.load_best_model_at_end or self.save_strategy == "best" or stops:
            self.metric_for_best_model = self.metric_for_best_model or "cfm"
        if (metric := self.metric_for_best_model) is None:
            return
        name, known = metric.removeprefix("eval_"), (*NAMES, "reward")
        if name not in known and not name.startswith(tuple(f"{task}_" for task in self.eval_tasks)):
            raise ConfigError(
                f"metric_for_best_model={metric!r} is no metric of validation; there is {', '.join(known)}, and "
                f"<task>_<metric> of eval_tasks{nearest(name, known)}"
            )
        if self.greater_is_better is None:  # not transformers' rule: cross_entropy and cfm do not end with "loss"
            self.greater_is_better = not smaller_is_better(metric)

    @property
    def rows_per_step(self) -> int:
        """Rows of a batch that one optimiser step sees: micro-batches of all processes together."""
        return self.per_device_train_batch_size * self.gradient_accumulation_steps * self.world_size

    def __getstate__(self) -> dict[str, object]:
        """What is pickled into checkpoints (training_args.bin): everything but the secret."""
        return {**vars(self), "hub_token": None}

    # ---- devices and processes, which transformers would set up while the object is made

    @property
    def started(self) -> bool:
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


def _has_fast_bf16(use_cpu: bool) -> bool:
    if torch.cuda.is_available() and not use_cpu:
        return torch.cuda.is_bf16_supported(including_emulation=False)
    has_tiles = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return has_tiles is not None and bool(has_tiles())
