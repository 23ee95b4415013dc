"""Settings of transformers that ebft declares itself, most of them for the paper's values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class TransformersDefaults:
    per_device_train_batch_size: int = field(default=16, metadata={"help": "sequences per process and forward pass"})
    per_device_eval_batch_size: int = field(default=8, metadata={"help": "sequences per process in evaluation"})
    learning_rate: float = field(default=1e-6, metadata={"help": "learning rate of AdamW"})
    lr_scheduler_type: str = field(default="constant_with_warmup", metadata={"help": "learning rate schedule"})
    warmup_steps: float = field(default=0.03, metadata={"help": "warm-up: a share of all steps below 1, else steps"})
    adam_beta2: float = field(default=0.95, metadata={"help": "second beta of AdamW"})
    num_train_epochs: float = field(default=2.0, metadata={"help": "passes over the data"})
    logging_steps: float = field(default=10, metadata={"help": "number of steps between log entries"})
    save_total_limit: int | None = field(default=3, metadata={"help": "checkpoints kept; the best one is kept besides"})
    report_to: str | list[str] | None = field(
        default="none", metadata={"help": "tensorboard, wandb, trackio, a list of these, all, or none"}
    )
    logging_nan_inf_filter: bool = field(
        default=False, metadata={"help": "hide NaN losses in logs; EBFT stops at them, and looking would slow a GPU"}
    )
    remove_unused_columns: bool = field(default=False, metadata={"help": "EBFT needs all columns of its datasets"})
    fsdp: str | bool | None = field(
        default=None,
        metadata={
            "help": "shard the model, its gradients and its optimiser state over the processes (FSDP2): full_shard "
            "or true; shard_grad_op keeps gathered weights until the backward pass"
        },
    )
    fsdp_config: dict[str, Any] | str | None = field(
        default=None,
        metadata={"help": "options of fsdp, or a JSON file with them: version (2) and reshard_after_forward"},
    )
    ddp_timeout: int = field(
        default=1800,
        metadata={"help": "seconds after which a process gives up on another one that does not answer"},
    )
