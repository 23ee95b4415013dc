"""Models, adapters, tokenizers and feature networks, from a folder, a hub name, a checkpoint or a run. With an adapter,
of any kind that sits in the model's own layers, the base model is frozen and serves as the feature network too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ebft import fetch
from ebft.config.method import MethodConfig
from ebft.config.recipe import Recipe
from ebft.config.settings import Values
from ebft.config.training import EBFTConfig
from ebft.data.row_format import check_tokenizer
from ebft.errors import ConfigError, first_line, how_to_install, nearest
from ebft.model.backbone import input_embeddings
from ebft.model.features import FeatureNetwork, Source, check_vocabulary
from ebft.runtime import sharding

if TYPE_CHECKING:
    from peft import PeftConfig

ADAPTER_FILE = "adapter_config.json"
WEIGHTS = ("*.safetensors", "*_model*.bin", "*.gguf", f"{sharding.MODEL}/*.distcp")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@contextmanager
def _said(what: str) -> Iterator[None]:
    """An error inside in one line: damaged files and odd settings end in errors of many kinds."""
    try:
        yield
    except Exception as error:
        kind = "" if isinstance(error, (OSError, ValueError)) else f"{type(error).__name__}: "
        raise ConfigError(f"{what}: {kind}{first_line(error)}") from error


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
            return cls(name, path)
        if not (folder / ADAPTER_FILE).exists():
            _check_weights(folder, "config.json")
            return cls(name, str(folder))
        _check_weights(folder, ADAPTER_FILE)
        with _said(f"{folder}: no base model by its {ADAPTER_FILE}"):
            values = json.loads((folder / ADAPTER_FILE).read_text(encoding="utf-8"))
            base = fetch.resolve(values["base_model_name_or_path"])
        if Path(base).expanduser().is_dir():
            base = str(Path(base).expanduser())
            _check_weights(Path(base), "config.json")
        return cls(name, base, str(folder))

    def identity(self) -> list[object]:
        """What changes when the weights change: names, sizes and times of their files; of a hub name, the name."""
        folders = [Path(place) for place in (self.base, self.adapter) if place is not None and Path(place).is_dir()]
        files = [file for folder in folders for file in sorted({f for kind in WEIGHTS for f in folder.glob(kind)})]
        return [self.base, self.adapter, [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files]]

    def load_tokenizer(self, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
        # An adapter saved by ebft has its tokenizer beside it; others leave it with the base model.
        own = self.adapter is not None and (Path(self.adapter) / "tokenizer_config.json").exists()
        return _tokenizer_of(f"model={self.name!r}", str(self.adapter) if own else self.base, trust_remote_code)

    def load(
        self, tokenizer: PreTrainedTokenizerBase, dtype: torch.dtype, device: torch.device, code: bool = False
    ) -> Any:
        """The model to evaluate, with its adapter on top. code: trust that of a remote model."""
        model = self.with_adapter(load_pretrained(self.base, dtype, code))
        check_tokenizer(tokenizer, len(input_embeddings(model)))
        return model.to(device).eval().requires_grad_(False)

    def with_adapter(self, base: PreTrainedModel) -> Any:
        """The base model with the trained adapter on top, if there is one, by peft."""
        if self.adapter is None:
            return base
        _need("peft", f"model={self.name!r} is an adapter, which", "peft")
        from peft import PeftModel

        with _said(f"the adapter {self.adapter} does not fit {self.base}"):
            return PeftModel.from_pretrained(base, self.adapter)


def _check_weights(folder: Path, config: str) -> None:
    """Said before another model is evaluated for minutes."""
    for patterns in ((config,), WEIGHTS):
        if not any(any(folder.glob(pattern)) for pattern in patterns):
            raise ConfigError(f"{folder} is not a checkpoint: it has no {' or '.join(patterns)}")


def load_pretrained(name: str, dtype: torch.dtype, trust_code: bool = False, **options: object) -> PreTrainedModel:
    """From a folder or a hub name, or from a checkpoint of a sharded run; `options` are for the former."""
    folder = Path(name).expanduser()
    with _said(f"model={name!r} cannot be loaded"):
        if not (folder / sharding.MODEL).is_dir():
            options |= {"dtype": dtype, "trust_remote_code": trust_code}
            return AutoModelForCausalLM.from_pretrained(name, **options)
        model = _model_like(name, dtype, trust_code)
        sharding.load_whole(folder, model)
        return model


def _model_like(name: str, dtype: torch.dtype, trust_remote_code: bool) -> PreTrainedModel:
    """Of the same shape, with other weights."""
    config = AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code)
    return AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=trust_remote_code)


# ---- what a recipe asks for ----------------------------------------------------------------------------------------


def load_tokenizer(recipe: Recipe) -> PreTrainedTokenizerBase:
    field = "tokenizer" if recipe.model.tokenizer else "model"
    name = recipe.model.tokenizer or recipe.model.model
    return _tokenizer_of(f"{field}={name!r}", fetch.resolve(name, field), recipe.model.trust_remote_code)


def _tokenizer_of(setting: str, place: str, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    with _said(f"the tokenizer of {setting} cannot be loaded"):
        return AutoTokenizer.from_pretrained(place, trust_remote_code=trust_remote_code)


def load_model(recipe: Recipe) -> Any:
    """The model to train, for EBFT or for a baseline. An adapter is merged: training begins anew from there."""
    model, training = recipe.model, recipe.training
    name, dtype = fetch.resolve(model.model), DTYPES[model.model_dtype]
    is_adapter = (Path(name).expanduser() / ADAPTER_FILE).is_file()
    if model.load_in_4bit:
        check_four_bit(recipe, is_adapter)
    if is_adapter:
        found = Checkpoint.find(name)
        adapted = found.with_adapter(load_pretrained(found.base, dtype, model.trust_remote_code))
        return adapted.merge_and_unload().requires_grad_(True)  # peft had frozen the base
    if model.adapted and training.bf16 and recipe.command == "train":
        dtype = torch.bfloat16  # the base model does not train: it needs no float32 weights, not even on its way
    options = four_bit(training.device) if model.load_in_4bit else {}
    if training.sharding is not None and training.process_index > 0:
        with torch.device("meta"):  # no weights: they come from the first process, a part of them
            return _model_like(name, dtype, model.trust_remote_code)
    return load_pretrained(name, dtype, model.trust_remote_code, **options)


def feature_network(model: nn.Module, config: EBFTConfig, tokenizer: PreTrainedTokenizerBase | None) -> FeatureNetwork:
    """The feature network that the settings ask for: another checkpoint, or made from the model as it is now."""
    dtype = torch.bfloat16 if config.bf16 else None
    if config.feature_model is not None:
        return other_feature_network(config.feature_model, model, config, tokenizer, dtype or torch.float32)
    of_model: Source = "adapter_off" if hasattr(model, "disable_adapter") else "copy"
    average = config.feature_source == "average"  # moves in float32 and still computes in bf16
    return FeatureNetwork(
        model,
        source=of_model if config.feature_source == "auto" else config.feature_source,
        decay=config.feature_decay,
        seed=config.seed,
        dtype=None if average else dtype,
        autocast=dtype if average else None,
        **tap_settings(config),
    )


def check_feature_model(config: EBFTConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Whether another checkpoint can be the feature network, without loading it."""
    if config.feature_model is not None:
        place = fetch.resolve(config.feature_model, "feature_model")
        check_vocabulary(place, _tokenizer_of(f"feature_model={config.feature_model!r}", place), tokenizer)


def other_feature_network(
    name: str,
    like: nn.Module,
    config: MethodConfig,
    tokenizer: PreTrainedTokenizerBase | None,
    dtype: torch.dtype,
    trust_remote_code: bool = False,
) -> FeatureNetwork:
    """Another checkpoint as the feature network of a model with the same vocabulary."""
    place, model_kwargs = fetch.resolve(name, "feature_model"), {"dtype": dtype, "trust_remote_code": trust_remote_code}
    with _said(f"feature_model={name!r} cannot be loaded"):
        return FeatureNetwork.from_pretrained(place, like, tokenizer, model_kwargs, **tap_settings(config))


def tap_settings(config: MethodConfig) -> Values:
    """What of the settings says how features are read off a network."""
    return {
        "layers": [int(layer) if layer > 1 else layer for layer in config.feature_layers],  # 1: the first; 1.0: all
        "pooling": config.feature_pooling,
        "normalize": config.feature_normalize,
        "backend": config.attention_backend,
    }


# ---- adapters ------------------------------------------------------------------------------------------------------

# What peft writes into a configuration that it saves, which is not about the adapter.
_BOOKKEEPING = ("base_model_name_or_path", "revision", "auto_mapping", "inference_mode", "peft_version")


def peft_config(recipe: Recipe) -> PeftConfig | None:
    """peft's configuration of the adapter that the recipe asks for."""
    model = recipe.model
    if not model.adapted:
        return None
    _need("peft", "lora=true" if model.lora else "peft", "peft")
    from peft import PromptLearningConfig
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

    if model.peft is None:
        targets = model.lora_target_modules
        given: Values = {"r": model.lora_r, "lora_alpha": model.lora_alpha, "lora_dropout": model.lora_dropout}
        given["target_modules"] = targets if targets == "all-linear" else [t.strip() for t in targets.split(",")]
    elif isinstance(model.peft, str):
        file = Path(model.peft).expanduser()
        with _said(f"peft={model.peft!r} is no {ADAPTER_FILE}, nor a folder with one"):
            given = json.loads((file / ADAPTER_FILE if file.is_dir() else file).read_text(encoding="utf-8"))
    else:
        given = model.peft
    kinds = {str(kind.value): cls for kind, cls in PEFT_TYPE_TO_CONFIG_MAPPING.items()}
    values = {"task_type": "CAUSAL_LM"} | {name: given[name] for name in given if name not in _BOOKKEEPING}
    kind = str(values.pop("peft_type", "LORA")).upper()
    if issubclass(kinds.get(kind, PromptLearningConfig), PromptLearningConfig):
        why = "adds tokens to the text, which packed sequences have no place for, or is not known to peft"
        raise ConfigError(f"peft: peft_type={kind} {why}{nearest(kind, kinds)}")
    with _said("peft"):
        return kinds[kind](**values)


def add_adapter(model: PreTrainedModel, config: PeftConfig) -> Any:
    """The model with a fresh adapter, whose weights are float32 whatever the base model's are."""
    from peft import get_peft_model

    with _said("the adapter does not fit the model"):
        adapted = get_peft_model(model, config)
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(torch.promote_types(parameter.dtype, torch.float32))
    return adapted


def four_bit(device: torch.device) -> Values:
    """How `from_pretrained` keeps a base model in 4 bits: QLoRA's data type, its scales quantised as well."""
    _need("bitsandbytes", "load_in_4bit=true", "qlora")
    from transformers import BitsAndBytesConfig

    stored = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
    config = BitsAndBytesConfig(**stored, bnb_4bit_compute_dtype=torch.bfloat16)
    return {"quantization_config": config, "device_map": {"": device}}


def check_four_bit(recipe: Recipe, is_adapter: bool) -> None:
    """What a base model in 4 bits cannot do, said before it is loaded."""
    has_copy = recipe.training.feature_source not in ("auto", "adapter_off")
    # On a CPU bitsandbytes computes too, but some of its kernels have no backward pass and do not say so.
    if recipe.command != "train" or is_adapter or has_copy or recipe.training.device.type == "cpu":
        needs = "a GPU, feature_source=auto, and a whole model (ebft export makes one of an adapter)"
        raise ConfigError(f"load_in_4bit=true is for ebft train; it needs {needs}")


def _need(package: str, setting: str, extra: str) -> None:
    if find_spec(package) is None:
        raise ConfigError(f"{setting} needs {package}; {how_to_install(extra)}")
