"""Several processes, as settings: what `fsdp` and `accelerate launch` ask for, and what is refused. Reads the
environment and changes nothing; `runtime.processes.start` does, where a run starts."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ebft.errors import ConfigError


@dataclass(frozen=True)
class Sharding:
    """How a model is sharded over the processes (FSDP2)."""

    reshard_after_forward: bool = True  # free a layer's gathered weights after every forward pass


def check_enough_gpus(gpus: int) -> None:
    """torch would say "invalid device ordinal"."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    if here > gpus > 0:
        raise ConfigError(
            f"{here} processes were started on this machine, which has {gpus} GPU{'s' if gpus > 1 else ''}; start "
            f"{gpus}, or set use_cpu"
        )


def check_not_wrapped(config: Any) -> None:
    """Asked for by a setting, or by `accelerate launch` through the environment."""
    for name in ("deepspeed", "parallelism_config"):
        if _asked_by_launcher(name) or getattr(config, name):
            raise ConfigError(
                f"{name}={getattr(config, name) or 'true'} is not supported; leave it out for plain data parallelism, "
                "or set fsdp=full_shard to shard the model over the processes"
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


def sharding_of(config: Any) -> Sharding | None:
    """What the settings or `accelerate launch` ask for. transformers and accelerate must not see it.

    Their FSDP does not fit: it knows no CPUs, adds gradients up in bf16, and shards only when training starts, after
    the frozen network was copied and the first evaluation was made.
    """
    asked, options = config.fsdp, _fsdp_options(config.fsdp_config)
    if _asked_by_launcher("fsdp"):
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
    if config.show_prompts:
        raise ConfigError("show_prompts needs the whole model in one process; leave it out with fsdp")
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
