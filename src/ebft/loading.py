"""The model that is evaluated: a folder, a hub name, or the folder of a LoRA adapter."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from ebft import fetch
from ebft.data.formats import check_tokenizer
from ebft.errors import ConfigError, first_line
from ebft.model.backbone import embedding_size
from ebft.runtime import sharded_checkpoints

ADAPTER_FILE = "adapter_config.json"
WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "*.gguf")
SHARDS = f"{sharded_checkpoints.MODEL}/*.distcp"
ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Checkpoint:
    name: str  # as the user gave it
    base: str  # folder or hub name of the whole model
    adapter: str | None = None  # folder of the adapter on top

    @classmethod
    def find(cls, name: str) -> Checkpoint:
        """Look at a name without loading anything; an error says what is missing."""
        path = fetch.resolve(name)
        folder = Path(path).expanduser()
        if not folder.exists():
            if name.startswith(("/", ".", "~")):
                raise ConfigError(f"model={name!r}: no such folder")
            return cls(name, path)
        if not folder.is_dir():
            raise ConfigError(f"model={name!r} is a file; give the folder of a checkpoint")
        if (folder / ADAPTER_FILE).exists():
            return cls(name, _base_of(folder, name), str(folder))
        _check_weights(folder, name)
        return cls(name, str(folder))

    def identity(self) -> list[Any]:
        """What changes when the weights change: names, sizes and times of their files; of a hub name, the name."""
        files = []
        for place in filter(None, (self.base, self.adapter)):
            folder = Path(place)
            patterns = (*WEIGHTS, SHARDS, *ADAPTER_WEIGHTS) if folder.is_dir() else ()
            for file in sorted({f for pattern in patterns for f in folder.glob(pattern)}):
                files.append([file.name, file.stat().st_size, file.stat().st_mtime_ns])
        return [self.base, self.adapter, files]

    def load_tokenizer(self, trust_remote_code: bool = False) -> Any:
        # An adapter saved by ebft has its tokenizer beside it; others leave it with the base model.
        beside = self.adapter is not None and (Path(self.adapter) / "tokenizer_config.json").exists()
        place = self.adapter if beside else self.base
        try:
            return AutoTokenizer.from_pretrained(place, trust_remote_code=trust_remote_code)
        except (OSError, ValueError) as error:
            raise ConfigError(f"the tokenizer of model={self.name!r} cannot be loaded: {first_line(error)}") from None

    def load(self, tokenizer: Any, dtype: torch.dtype, device: torch.device, trust_remote_code: bool = False) -> Any:
        try:
            model = load_model(self.base, dtype, trust_remote_code)
        except (OSError, ValueError) as error:
            raise ConfigError(f"model={self.name!r} cannot be loaded: {first_line(error)}") from None
        if self.adapter is not None:
            try:
                from peft import PeftModel
            except ImportError:
                raise ConfigError(
                    f"model={self.name!r} is an adapter, which needs peft; install it with `pip install ebft[peft]`"
                ) from None
            try:
                model = PeftModel.from_pretrained(model, self.adapter)
            except (RuntimeError, ValueError) as error:
                raise ConfigError(f"the adapter {self.adapter} does not fit {self.base}: {first_line(error)}") from None
        check_tokenizer(tokenizer, embedding_size(model))
        return model.to(device).eval().requires_grad_(False)


def load_model(name: str, dtype: torch.dtype, trust_remote_code: bool = False, **options: Any) -> Any:
    """From a folder or a hub name, or from a checkpoint of a sharded run; `options` are for the former."""
    folder = Path(name).expanduser()
    try:
        if not (folder / sharded_checkpoints.MODEL).is_dir():
            code = {"trust_remote_code": trust_remote_code}
            return AutoModelForCausalLM.from_pretrained(name, dtype=dtype, **code, **options)
        model = model_like(name, dtype, trust_remote_code)
        sharded_checkpoints.load_whole(folder, model)
        return model
    except (SafetensorError, RuntimeError) as error:  # a damaged file, or one of another shape
        raise OSError(first_line(error)) from error


def model_like(name: str, dtype: torch.dtype, trust_remote_code: bool = False) -> Any:
    """Of the same shape, with other weights."""
    config = AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code)
    return AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=trust_remote_code)


def _base_of(folder: Path, name: str) -> str:
    if not any((folder / file).exists() for file in ADAPTER_WEIGHTS):
        raise ConfigError(f"model={name!r}: the adapter folder has no {' or '.join(ADAPTER_WEIGHTS)}")
    try:
        base = json.loads((folder / ADAPTER_FILE).read_text(encoding="utf-8")).get("base_model_name_or_path")
    except (json.JSONDecodeError, AttributeError):
        raise ConfigError(f"model={name!r}: {ADAPTER_FILE} is not valid JSON") from None
    if not base:
        raise ConfigError(f"model={name!r}: {ADAPTER_FILE} does not name its base model (base_model_name_or_path)")
    base = fetch.resolve(base)
    path = Path(base).expanduser()
    if path.is_dir():
        _check_weights(path, base)
        return str(path)
    if base.startswith(("/", ".", "~")):
        raise ConfigError(f"model={name!r}: its base model {base} is not there; correct {ADAPTER_FILE}")
    return base


def _check_weights(folder: Path, name: str) -> None:
    if any(True for pattern in (*WEIGHTS, SHARDS) for _ in folder.glob(pattern)) and (folder / "config.json").exists():
        return
    inside = next((p for p in (folder / "final", *sorted(folder.glob("checkpoint-*"))) if p.is_dir()), None)
    hint = f"; did you mean {inside}?" if inside is not None else ""
    if not (folder / "config.json").exists():
        raise ConfigError(f"model={name!r} has no config.json, so it is no checkpoint{hint}")
    raise ConfigError(f"model={name!r} has no weights (expected model.safetensors or pytorch_model.bin){hint}")
