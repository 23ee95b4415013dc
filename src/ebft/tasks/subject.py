"""What a task is run on: a model with its tokenizer, a generator for it, and the feature network that measures it.

`LoadedSubject` wraps a model that is there already (in training); `CheckpointSubject` loads one when a task first
needs it, so that resuming an evaluation that is complete loads nothing.
"""

from __future__ import annotations

import logging
from functools import cached_property
from typing import Any, Protocol

import torch

from ebft.config.evaluation import EvalOptions
from ebft.errors import ConfigError
from ebft.loading import DTYPES, Checkpoint, other_feature_network, tap_settings
from ebft.model.features import FeatureNetwork
from ebft.tasks.generation import Generator, TransformersGenerator

logger = logging.getLogger(__name__)


class Subject(Protocol):
    identity: Any  # tells weights apart, for resuming
    feature_name: str
    feature_source: Any  # tells feature networks apart, for resuming

    @property
    def tokenizer(self) -> Any: ...
    @property
    def model(self) -> Any: ...
    @property
    def generator(self) -> Generator: ...
    @property
    def features(self) -> FeatureNetwork: ...


class LoadedSubject:
    def __init__(self, model: Any, tokenizer: Any, features: FeatureNetwork, identity: Any, batch_size: int) -> None:
        self.model, self.tokenizer, self.features, self.identity = model, tokenizer, features, identity
        self.generator: Generator = TransformersGenerator(model, tokenizer, batch_size)
        self.feature_name = self.feature_source = "the training run's"


class CheckpointSubject:
    def __init__(self, name: str, options: EvalOptions) -> None:
        self.options = options
        self.checkpoint = Checkpoint.find(name)
        self.device = resolve_device(options.device)
        self.dtype = DTYPES.get(options.dtype, torch.bfloat16 if self.device.type == "cuda" else torch.float32)
        self.identity = [*self.checkpoint.identity(), str(self.dtype)]
        self.feature_name = options.feature_model or (options.model[0] if options.model else name)
        # The adapter's base is the model before training, whose features the method itself uses.
        self.feature_checkpoint = Checkpoint.find(Checkpoint.find(self.feature_name).base)
        self.feature_source = [*self.feature_checkpoint.identity(), str(self.dtype)]

    def describe(self) -> dict[str, Any]:
        return {
            "model": self.checkpoint.name,
            "base": self.checkpoint.base,
            "adapter": self.checkpoint.adapter,
            "dtype": str(self.dtype).removeprefix("torch."),
            "device": str(self.device),
        }

    def unload(self) -> None:
        """Frees the memory of model, features and generator; they are loaded again when needed."""
        for name in ("model", "features", "generator"):
            vars(self).pop(name, None)

    @cached_property
    def tokenizer(self) -> Any:
        return self.checkpoint.load_tokenizer(self.options.trust_remote_code)

    @cached_property
    def model(self) -> Any:
        return self.checkpoint.load(self.tokenizer, self.dtype, self.device, self.options.trust_remote_code)

    @cached_property
    def generator(self) -> Generator:
        if self.options.backend == "transformers":
            return TransformersGenerator(self.model, self.tokenizer, self.options.batch_size)
        from ebft.tasks.vllm_generator import VLLMGenerator

        return VLLMGenerator(
            self.checkpoint.base,
            self.tokenizer,
            self.checkpoint.adapter,
            [] if self.tokenizer.eos_token_id is None else [self.tokenizer.eos_token_id],
            dtype=str(self.dtype).removeprefix("torch."),
            trust_remote_code=self.options.trust_remote_code,
        )

    @cached_property
    def features(self) -> FeatureNetwork:
        options = self.options
        if options.feature_model is None:
            logger.info(
                f"calibration: no --feature-model, so features are those of {self.feature_checkpoint.base}; compare "
                "results only with others that use the same features"
            )
        if self.feature_checkpoint.base == self.checkpoint.base:  # the weights are here already
            source: Any = "shared" if self.checkpoint.adapter is None else "adapter_off"
            return FeatureNetwork(self.model, source=source, **tap_settings(options.method))
        return other_feature_network(
            self.feature_checkpoint.base,
            self.model,
            options.method,
            self.tokenizer,
            self.dtype,
            options.trust_remote_code,
        )


def resolve_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device={name!r} is not a device; use auto, cpu, cuda or cuda:1") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device={name!r}: torch finds no CUDA device; use --device cpu")
    return device
