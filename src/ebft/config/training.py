"""Every setting of a training run, with its help text and its checks, in one place.

`EBFTConfig` extends transformers' `TrainingArguments` (batch size, learning rate, schedules, logging, saving, ...) by
what EBFT adds. `DataConfig` and `ModelConfig` say what to train on and what to train; a recipe holds all three in one
flat list.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import torch
from transformers import TrainingArguments

from ebft.errors import ConfigError, nearest
from ebft.method.rewards import Whitening

LARGER_IS_BETTER = ("whitened_proxy", "reward")


@dataclass(frozen=True)
class Sharding:
    """How a model is shared out over the processes (FSDP2)."""

    reshard_after_forward: bool = True  # free a layer's gathered weights after every forward pass


def _option(default: Any, help: str, group: str, **kwargs: Any) -> Any:
    metadata = {"help": help, "group": group}
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: type(default)(default), metadata=metadata, **kwargs)
    return field(default=default, metadata=metadata, **kwargs)


@dataclass
class EBFTConfig(TrainingArguments):
    # ---- the method; defaults are the paper's for Q&A code
    context_length: int = _option(1024, "T: tokens of a training sequence", "method")
    horizon: int = _option(8, "G: tokens of a rollout", "method")
    stride: int = _option(8, "s: tokens between anchors", "method")
    samples: int = _option(4, "n: rollouts from every anchor", "method")
    temperature: float = _option(0.6, "sampling temperature of the rollouts, and of their log-probs", "method")
    anchors: str = _option(
        "strided",
        "strided: every `stride` tokens; answer_start: one anchor at the start of each answer, for whole-answer "
        "rollouts with a long horizon",
        "method",
    )
    whitening: str = _option(
        "reference",
        "form of the reward: none, plain, paper, both, truth or reference. reference is what the released code "
        "computes and what the paper's numbers come from",
        "method",
    )
    alpha: float = _option(1.0, "weight of the diversity term in the reward, 0 to 1", "method")
    gamma: float = _option(0.0, "weight of next-token cross-entropy beside feature matching", "method")
    kl_weight: float = _option(0.0, "1/beta: weight of the divergence from the model at the start; 0 is off", "method")
    answer_only: bool = _option(False, "use only anchors and cross-entropy targets inside answers", "method")
    document_masks: bool = _option(
        False,
        "a token sees only its own document, and completions end at end tokens; the released runs went without",
        "method",
    )

    # ---- the frozen feature network
    feature_layers: list[float] = _option(
        [0.25, 0.5, 0.75], "hidden states to tap: up to 1, fractions of the depth; above, layer numbers", "features"
    )
    feature_pooling: str = _option("last", "last token of the completion, or mean over its tokens", "features")
    feature_normalize: str = _option(
        "per_layer", "per_layer: unit length per tapped layer; joint: once, as the released code does", "features"
    )
    feature_source: str = _option(
        "auto",
        "auto: a copy of the model at the start, or with LoRA the base model with its adapter off; or copy, "
        "adapter_off, random, average",
        "features",
    )
    feature_model: str | None = _option(
        None,
        "another checkpoint (folder, hub name or output folder of a run) with the same vocabulary as the feature "
        "network",
        "features",
    )
    feature_decay: float = _option(0.999, "decay of the moving average with feature_source=average", "features")

    # ---- data
    packing: bool = _option(True, "documents one after the other; otherwise one document a row, padded", "data")

    # ---- running
    attention_backend: str = _option("auto", "auto, sdpa, or flex (CUDA)", "running")
    bf16_if_fast: bool = _option(
        False, "bf16=true where the hardware has units for it (GPUs since Ampere, CPUs with AMX)", "running"
    )
    compile_layers: bool | None = _option(
        None, "compile the model's layers with torch.compile; default: on a GPU, or with torch_compile", "running"
    )
    rollout_batch_size: int | None = _option(
        None, "sequences rolled out at once; default: a whole accumulation window", "running"
    )
    disable_dropout: bool = _option(
        True, "set the model's dropouts to 0: EBFT needs the log-probs it sampled from", "running"
    )
    save_log_spaced: bool = _option(False, "also save checkpoints at steps 1, 2, 4, 8, ...", "running")
    samples_every: int = _option(
        50, "write a table of contexts, truths and completions every so many steps; 0: never", "running"
    )
    max_reward: float = _option(1e4, "stop if the mean reward grows beyond this", "running")
    eval_samples: int | None = _option(None, "rollouts per anchor in evaluation; default: samples", "running")
    eval_seed: int = _option(0, "seed of the rollouts in evaluation, the same at every step", "running")
    eval_tasks: list[str] = _option(
        [],
        "tasks of `ebft eval` to run while training: calibration, humaneval, mbpp, multipl-e, translation",
        "running",
    )
    eval_tasks_every: int | None = _option(
        None, "run eval_tasks every so many steps; default: at every evaluation", "running"
    )
    eval_task_options: dict[str, Any] = _option(
        {}, "options of `ebft eval` for eval_tasks, such as {limit: 20, samples: 0}; only in a recipe", "running"
    )

    # ---- transformers' settings with the paper's values
    per_device_train_batch_size: int = field(default=16, metadata={"help": "sequences per process and forward pass"})
    per_device_eval_batch_size: int = field(default=8, metadata={"help": "sequences per process in evaluation"})
    learning_rate: float = field(default=1e-6, metadata={"help": "learning rate of AdamW"})
    lr_scheduler_type: str = field(default="constant_with_warmup", metadata={"help": "learning rate schedule"})
    warmup_steps: float = field(default=0.03, metadata={"help": "warm-up: a share of all steps below 1, else steps"})
    adam_beta2: float = field(default=0.95, metadata={"help": "second beta of AdamW"})
    num_train_epochs: float = field(default=2.0, metadata={"help": "passes over the data"})
    logging_steps: float = field(default=10, metadata={"help": "log every so many steps"})
    save_total_limit: int | None = field(default=3, metadata={"help": "checkpoints kept; the best one is kept besides"})
    report_to: str | list[str] | None = field(
        default="none", metadata={"help": "tensorboard, wandb, trackio, a list of these, all, or none"}
    )
    logging_nan_inf_filter: bool = field(
        default=False, metadata={"help": "hide NaN losses in logs; EBFT stops at them, and looking would slow a GPU"}
    )
    remove_unused_columns: bool = field(default=False, metadata={"help": "EBFT needs all columns of its datasets"})
    fsdp: str | bool | None = field(  # type: ignore[assignment]
        default=None,
        metadata={
            "help": "share the model, its gradients and its optimiser state out over the processes (FSDP2): full_shard "
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
    sharding: Sharding | None = field(default=None, init=False, repr=False)  # what fsdp and fsdp_config come to

    def __post_init__(self) -> None:
        check_method(self)
        if self.bf16_if_fast and _has_fast_bf16(self.use_cpu):
            self.bf16 = True
        _check_enough_gpus(self.use_cpu)
        if not torch.accelerator.is_available():
            # Said aloud: bf16 in a recipe for a GPU then loads on any machine, and several processes find each other.
            self.use_cpu = True
            self.dataloader_pin_memory = False  # there is nothing to pin memory for, and torch would warn
        _check_not_wrapped(self)
        self.sharding = _sharding(self)
        _join_processes(self)
        if self.load_best_model_at_end or self.save_strategy == "best":
            self.metric_for_best_model = self.metric_for_best_model or "cfm"
        if self.metric_for_best_model is not None and self.greater_is_better is None:
            # Not transformers' rule, which takes everything but a loss for better when larger.
            self.greater_is_better = self.metric_for_best_model.removeprefix("eval_") in LARGER_IS_BETTER
        super().__post_init__()
        _check_reporting(self.report_to)

    @property
    def rows_per_step(self) -> int:
        """Rows of a batch that one optimiser step sees: micro-batches of all processes together."""
        return self.per_device_train_batch_size * self.gradient_accumulation_steps * self.world_size

    @property
    def device(self) -> torch.device:
        # With several processes transformers says "cpu:0"; 5.17 loads optimisers to there, which torch refuses.
        found = super().device
        return torch.device("cpu") if found.type == "cpu" else found


@dataclass
class ModelConfig:
    model: str = _option(
        "",
        "folder or hub name of the model to train, or the output folder of a run, whose final model is meant; "
        "`smollm2-135m` after `ebft fetch smollm2-135m`",
        "model",
    )
    tokenizer: str | None = _option(None, "folder or hub name of the tokenizer; default: the model's", "model")
    model_dtype: str = _option(
        "float32",
        "precision of the weights that are trained. Keep float32: a bf16 weight does not move at lr 1e-6",
        "model",
    )
    trust_remote_code: bool = _option(False, "run code that comes with a model from the hub", "model")
    lora: bool = _option(False, "train a LoRA adapter instead of the whole model (needs peft)", "model")
    lora_r: int = _option(16, "rank of the adapter", "model")
    lora_alpha: int = _option(32, "scale of the adapter", "model")
    lora_dropout: float = _option(0.0, "dropout of the adapter; EBFT needs 0", "model")
    lora_target_modules: str = _option("all-linear", "modules to adapt, separated by commas", "model")
    peft: str | dict[str, Any] | None = _option(
        None,
        "train any other adapter of peft: a mapping such as {peft_type: IA3, target_modules: all-linear}, or an "
        "adapter_config.json or its folder",
        "model",
    )
    load_in_4bit: bool = _option(
        False, "keep the frozen base model under an adapter in 4 bits: QLoRA (needs bitsandbytes)", "model"
    )

    def __post_init__(self) -> None:
        if self.lora and self.peft is not None:
            raise ConfigError("lora=true and peft exclude each other; give one of them")
        if self.load_in_4bit and not self.adapted:
            raise ConfigError(
                "load_in_4bit=true needs an adapter to train, since 4 bits do not move; set lora=true or peft"
            )

    @property
    def adapted(self) -> bool:
        """Whether an adapter is trained instead of the model."""
        return self.lora or self.peft is not None


@dataclass
class DataConfig:
    dataset: list[str] = _option(
        [], "file, folder, hub name or built-in (stdlib-code, stdlib-functions); several are mixed", "data"
    )
    dataset_weights: list[float] = _option(
        [], "proportions of a mixture, one per dataset; default: all of everything", "data"
    )
    dataset_split: str = _option("train", "split of a hub dataset or of a folder with files named by split", "data")
    validation_dataset: str | None = _option(None, "where validation rows come from, if not from the dataset", "data")
    validation_dataset_split: str = _option("validation", "its split", "data")
    validation_split: float = _option(0.02, "share (below 1) or number of documents held out; 0: no validation", "data")
    validation_sequences: int = _option(64, "at most so many sequences in an evaluation", "data")
    limit_documents: int | None = _option(None, "read at most so many documents of each dataset", "data")
    split_seed: int = _option(0, "seed of the split and of mixtures", "data")
    text_column: str = _option("text", "column of plain text", "data")
    prompt_column: str = _option("prompt", "column of prompts", "data")
    completion_column: str = _option("completion", "column of completions", "data")
    messages_column: str = _option("messages", "column of conversations", "data")

    def __post_init__(self) -> None:
        if self.validation_split < 0:
            raise ConfigError(f"validation_split={self.validation_split} must be 0 (none), a share below 1 or a number")
        if self.validation_sequences < 1:
            raise ConfigError(
                f"validation_sequences={self.validation_sequences} must be at least 1; for none, set validation_split=0"
            )
        if self.limit_documents is not None and self.limit_documents < 1:
            raise ConfigError(f"limit_documents={self.limit_documents} must be at least 1, or none")

    @property
    def columns(self) -> dict[str, str]:
        return {name: getattr(self, f"{name}_column") for name in ("text", "prompt", "completion", "messages")}


def check_method(config: EBFTConfig) -> None:
    """All checks on EBFT's own settings."""
    _one_of(config, "whitening", get_args(Whitening))
    _one_of(config, "anchors", ("strided", "answer_start"))
    _one_of(config, "feature_pooling", ("last", "mean"))
    _one_of(config, "feature_normalize", ("per_layer", "joint"))
    _one_of(config, "feature_source", ("auto", "copy", "adapter_off", "random", "average"))
    _one_of(config, "attention_backend", ("auto", "sdpa", "flex"))
    for name in ("context_length", "horizon", "stride", "samples"):
        if getattr(config, name) < 1:
            raise ConfigError(f"{name}={getattr(config, name)} must be at least 1")
    if config.anchors == "strided" and config.context_length - config.horizon < config.stride:
        raise ConfigError(
            f"horizon={config.horizon} with stride={config.stride} does not fit in context_length="
            f"{config.context_length}; use horizon<={config.context_length - config.stride} or a longer context"
        )
    if not config.temperature > 0:
        raise ConfigError(f"temperature={config.temperature} must be above 0: greedy rollouts have no policy gradient")
    if not 0 <= config.alpha <= 1:
        raise ConfigError(f"alpha={config.alpha} must lie between 0 and 1")
    for name in ("gamma", "kl_weight"):
        if getattr(config, name) < 0:
            raise ConfigError(f"{name}={getattr(config, name)} must not be negative")
    for name in ("rollout_batch_size", "eval_samples"):
        if getattr(config, name) is not None and getattr(config, name) < 1:
            raise ConfigError(f"{name}={getattr(config, name)} must be at least 1, or none")
    if config.samples < 2 and (config.eval_samples or 1) < 2:
        raise ConfigError("samples=1 leaves no unbiased feature-matching loss to evaluate; set eval_samples=2 or more")
    if config.feature_model is not None and config.feature_source != "auto":
        raise ConfigError(
            f"feature_model={config.feature_model!r} and feature_source={config.feature_source!r} exclude each other; "
            "give one of them"
        )


def _check_enough_gpus(use_cpu: bool) -> None:
    """torch would say "invalid device ordinal"."""
    here, gpus = int(os.environ.get("LOCAL_WORLD_SIZE") or 1), torch.cuda.device_count()
    if here > gpus > 0 and not use_cpu:
        raise ConfigError(
            f"{here} processes were started on this machine, which has {gpus} GPU{'s' if gpus > 1 else ''}; start "
            f"{gpus}, or set use_cpu"
        )


def _check_not_wrapped(config: EBFTConfig) -> None:
    """Asked for by a setting, or by `accelerate launch` through the environment."""
    for name in ("deepspeed", "parallelism_config"):
        if _asked_by_launcher(name) or getattr(config, name):
            raise ConfigError(
                f"{name}={getattr(config, name) or 'true'} is not supported; leave it out for plain data parallelism, "
                "or set fsdp=full_shard to share the model out over the processes"
            )


def _asked_by_launcher(name: str) -> bool:
    return os.environ.get(f"ACCELERATE_USE_{name.upper()}", "false").lower() in ("true", "1")


# What `accelerate launch --use_fsdp` sets that means the same here, by our names.
_FSDP_VARIABLES = {
    "version": "FSDP_VERSION",
    "reshard_after_forward": "FSDP_RESHARD_AFTER_FORWARD",
    "cpu_offload": "FSDP_OFFLOAD_PARAMS",
    "activation_checkpointing": "FSDP_ACTIVATION_CHECKPOINTING",
}
# What transformers and accelerate know beside that and ebft decides itself: which modules are gathered together, how
# checkpoints are written, and that every process loads the model.
_FSDP_OURS = """auto_wrap_policy transformer_layer_cls_to_wrap min_num_params state_dict_type sync_module_states
    cpu_ram_efficient_loading use_orig_params limit_all_gathers""".split()  # noqa: SIM905


def _sharding(config: EBFTConfig) -> Sharding | None:
    """What is asked for by the settings or by `accelerate launch`, taken away from transformers and accelerate.

    Their way to FSDP does not fit: it knows no CPUs, adds gradients up in bf16, and shards only when training starts,
    after the frozen network was copied and the first evaluation was made.
    """
    asked, options = config.fsdp, _fsdp_options(config.fsdp_config)
    config.fsdp, config.fsdp_config = None, None
    if _asked_by_launcher("fsdp"):
        del os.environ["ACCELERATE_USE_FSDP"]
        asked = asked or True
        options = {name: os.environ[key] for name, key in _FSDP_VARIABLES.items() if key in os.environ} | options
    words = asked.replace(",", " ").lower().split() if isinstance(asked, str) else ["full_shard"] if asked else []
    words = [word for word in words if word not in ("auto_wrap", "false")]
    if not words:
        return None
    if unknown := [word for word in words if word not in ("full_shard", "shard_grad_op", "true")]:
        raise ConfigError(
            f"fsdp={asked!r}: {unknown[0]} is not supported; use full_shard, or shard_grad_op, which keeps gathered "
            "weights until the backward pass"
        )
    if str(options.pop("version", 2)) != "2":
        raise ConfigError(
            "version 1 of FSDP is not supported; use version 2: fsdp=full_shard without a version in fsdp_config, or "
            "`accelerate launch --use_fsdp --fsdp_version 2`"
        )
    for name, instead in ("cpu_offload", "more processes"), ("activation_checkpointing", "gradient_checkpointing=true"):
        if _is_true(options.pop(name, False)):
            raise ConfigError(f"{name} of fsdp is not supported; use {instead}")
    reshard = _is_true(options.pop("reshard_after_forward", "shard_grad_op" not in words))
    if unknown := [name for name in options if name not in _FSDP_OURS]:
        raise ConfigError(f"fsdp_config holds {unknown[0]!r}; it takes version and reshard_after_forward")
    if config.fp16:
        raise ConfigError("fsdp with fp16=true is not supported; use bf16=true, or float32")
    if config.eval_tasks:
        raise ConfigError(
            "eval_tasks run in the first process, which holds only a part of a sharded model; leave them out, and use "
            "`ebft eval` on checkpoints"
        )
    return Sharding(reshard)


def _fsdp_options(given: dict[str, Any] | str | None) -> dict[str, Any]:
    options: Any = given or {}
    if isinstance(given, str):
        try:
            options = json.loads(Path(given).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"fsdp_config={given!r} cannot be read: {error}") from None
    if not isinstance(options, dict):
        raise ConfigError(f"fsdp_config={given!r} is not a mapping of options")
    return {name.removeprefix("fsdp_"): value for name, value in options.items()}


def _is_true(value: Any) -> bool:
    return str(value).lower() in ("true", "1", "yes", "full_shard")


def _join_processes(config: EBFTConfig) -> None:
    """On CPUs transformers would forget the timeout; on GPUs it does not, and joins the processes itself."""
    on_cpu = config.use_cpu or _asked_by_launcher("cpu") or not torch.accelerator.is_available()
    several = {"RANK", "MASTER_ADDR"} <= os.environ.keys() and int(os.environ.get("WORLD_SIZE") or 1) > 1
    if on_cpu and several and not torch.distributed.is_initialized():
        torch.distributed.init_process_group(
            config.ddp_backend or "gloo", timeout=timedelta(seconds=config.ddp_timeout)
        )


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


def _one_of(config: Any, name: str, options: tuple[str, ...]) -> None:
    value = getattr(config, name)
    if value not in options:
        raise ConfigError(f"{name}={value!r} is not one of {', '.join(options)}{nearest(str(value), options)}")


def own_fields(cls: type) -> list[str]:
    """The settings a class adds to its parents, in order."""
    inherited = {f.name for base in cls.__mro__[1:] if hasattr(base, "__dataclass_fields__") for f in fields(base)}
    return [f.name for f in fields(cls) if f.init and f.name not in inherited]
