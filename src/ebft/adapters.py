"""Adapters: a small part is trained on top of a frozen base model, which then serves as the feature network too.

`lora: true` is the usual case, `peft:` takes any configuration of peft whose adapter sits in the model's own layers,
and `load_in_4bit: true` keeps the base model in 4 bits (QLoRA).
"""

from __future__ import annotations

import copy
import json
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from ebft.config.recipe import Recipe
from ebft.config.training import EBFTConfig
from ebft.errors import ConfigError, how_to_install, nearest, what_is_wrong

# What peft writes into a configuration that it saves, which is not about the adapter.
_BOOKKEEPING = ("base_model_name_or_path", "revision", "auto_mapping", "inference_mode", "peft_version")


def peft_config(recipe: Recipe) -> Any:
    """peft's configuration of the adapter that the recipe asks for, or None."""
    model = recipe.model
    if not model.adapted:
        return None
    _need("peft", "lora=true" if model.lora else "peft", "peft")
    from peft import LoraConfig

    if model.peft is not None:
        return _any_config(_read(model.peft) if isinstance(model.peft, str) else model.peft)
    targets: str | list[str] = model.lora_target_modules
    if targets != "all-linear":
        targets = [t.strip() for t in str(targets).split(",")]
    return LoraConfig(
        r=model.lora_r,
        lora_alpha=model.lora_alpha,
        lora_dropout=model.lora_dropout,
        target_modules=targets,
        task_type="CAUSAL_LM",
    )


def _any_config(given: dict[str, Any]) -> Any:
    from peft import PromptLearningConfig
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

    kinds = {str(kind.value): cls for kind, cls in PEFT_TYPE_TO_CONFIG_MAPPING.items()}
    values = {name: value for name, value in given.items() if name not in _BOOKKEEPING}
    kind = str(values.pop("peft_type", "LORA")).upper()
    if kind not in kinds:
        raise ConfigError(f"peft: peft_type={kind!r} is not known to peft{nearest(kind, kinds)}")
    if issubclass(kinds[kind], PromptLearningConfig):
        raise ConfigError(
            f"peft: peft_type={kind} adds tokens to the text, which packed sequences have no place for; use an adapter "
            "of the layers such as LORA or IA3"
        )
    known = [f.name for f in fields(kinds[kind])]
    for name in values:
        if name not in known:
            raise ConfigError(f"peft: {kind} has no setting {name!r}{nearest(str(name), known)}")
    try:
        return kinds[kind](**{"task_type": "CAUSAL_LM", **values})
    except (TypeError, ValueError) as error:
        raise ConfigError(f"peft: {error}") from None


def _read(place: str) -> dict[str, Any]:
    file = Path(place).expanduser()
    file = file / "adapter_config.json" if file.is_dir() else file
    if not file.is_file():
        raise ConfigError(f"peft={place!r}: no such file; give an adapter_config.json, its folder, or a mapping")
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ConfigError(f"peft={place!r} is not valid JSON ({what_is_wrong(error)})") from None
    if not isinstance(values, dict):
        raise ConfigError(f"peft={place!r} holds no mapping")
    return values


def add(model: Any, config: Any) -> Any:
    """The model with a fresh adapter, whose weights are float32 whatever the base model's are."""
    from peft import get_peft_model

    try:
        adapted = get_peft_model(model, config)
    except ValueError as error:  # modules that the model does not have, shapes that do not divide
        raise ConfigError(f"the adapter does not fit the model: {error}") from None
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(torch.promote_types(parameter.dtype, torch.float32))
    return adapted


class Counted(NamedTuple):
    """Weights that matter with an adapter."""

    trained: int  # of the adapter itself
    rebuilt: int  # of the model, built anew in every pass with the adapter's part added


def count_weights(meta_model: nn.Module, config: Any) -> Counted:
    """Of the adapter on a model of the meta device, which is left as it is."""
    from peft import get_peft_model
    from peft.tuners.lora.layer import ParamWrapper

    # peft writes what it has found out into the configuration, and its layers into the model.
    adapted: Any = get_peft_model(copy.deepcopy(meta_model), copy.deepcopy(config), low_cpu_mem_usage=True)
    # Stacked experts have no layer of their own that an adapter could stand beside.
    wrapped = [module.get_param() for module in adapted.modules() if isinstance(module, ParamWrapper)]
    return Counted(
        sum(p.numel() for p in adapted.parameters() if p.requires_grad), sum(p.numel() for p in wrapped if p.dim() == 3)
    )


def four_bit(device: torch.device) -> dict[str, Any]:
    """How `from_pretrained` keeps a base model in 4 bits: QLoRA's data type, its scales quantised as well."""
    _need("bitsandbytes", "load_in_4bit=true", "qlora")
    from transformers import BitsAndBytesConfig

    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    return {"quantization_config": config, "device_map": {"": device}}


def check_four_bit(training: EBFTConfig) -> None:
    """What a base model in 4 bits cannot do, said before it is loaded."""
    if training.feature_source not in ("auto", "adapter_off"):
        raise ConfigError(
            f"feature_source={training.feature_source!r} copies the model, which load_in_4bit=true does not allow; use "
            "auto"
        )
    if training.device.type == "cpu":
        # bitsandbytes computes there too, but some of its kernels have no backward pass and do not say so.
        raise ConfigError("load_in_4bit=true needs a GPU to train on; leave it out on a CPU")


def _need(package: str, setting: str, extra: str) -> None:
    if find_spec(package) is None:
        raise ConfigError(f"{setting} needs {package}; {how_to_install(extra)}")
