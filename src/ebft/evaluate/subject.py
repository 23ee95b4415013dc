"""What a task is run on: a model with its tokenizer, a generator for it, and the feature network that measures it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from ebft.config.evaluation import EvalOptions
from ebft.errors import ConfigError, first_line
from ebft.evaluate.generation import Generator, TransformersGenerator, VLLMGenerator
from ebft.loading import DTYPES, Checkpoint, other_feature_network, tap_settings
from ebft.model.features import FeatureNetwork, Source

logger = logging.getLogger(__name__)


@dataclass
class LoadedSubject:
    """A model that is there already, in training. `identity` tells weights apart, `feature_source` feature networks."""

    model: Any
    tokenizer: PreTrainedTokenizerBase
    features: FeatureNetwork
    identity: object
    batch_size: int | None
    feature_name: str = "the training run's"
    feature_source: object = feature_name

    @property
    def generator(self) -> Generator:
        return TransformersGenerator(self.model, self.tokenizer, self.batch_size)


class CheckpointSubject:
    """Loads its model when a task first needs it: scoring what is generated needs none."""

    def __init__(self, name: str, options: EvalOptions) -> None:
        self.options, self.checkpoint = options, Checkpoint.find(name)
        place = ("cuda" if torch.cuda.is_available() else "cpu") if options.device == "auto" else options.device
        try:
            self.device = torch.empty(0, device=place).device
        except (RuntimeError, AssertionError) as error:  # no such device, or none on this machine
            raise ConfigError(f"device={place!r}: {first_line(error)}") from None
        self.dtype = DTYPES.get(options.dtype, torch.bfloat16 if self.device.type == "cuda" else torch.float32)
        self.identity: object = [*self.checkpoint.identity(), str(self.dtype)]
        self.feature_name: str = options.feature_model or (options.model[0] if options.model else name)
        # The adapter's base is the model before training, whose features the method itself uses.
        self.feature_checkpoint = Checkpoint.find(Checkpoint.find(self.feature_name).base)
        self.feature_source: object = [*self.feature_checkpoint.identity(), str(self.dtype)]

    def describe(self) -> dict[str, str | None]:
        names = {"model": self.checkpoint.name, "base": self.checkpoint.base, "adapter": self.checkpoint.adapter}
        return {**names, "dtype": str(self.dtype).removeprefix("torch."), "device": str(self.device)}

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self.checkpoint.load_tokenizer(self.options.trust_remote_code)

    @cached_property
    def model(self) -> Any:
        return self.checkpoint.load(self.tokenizer, self.dtype, self.device, self.options.trust_remote_code)

    @cached_property
    def generator(self) -> Generator:
        if self.options.backend == "transformers":
            return TransformersGenerator(self.model, self.tokenizer, self.options.batch_size)
        of_vllm = {"dtype": self.describe()["dtype"], "trust_remote_code": self.options.trust_remote_code}
        return VLLMGenerator(self.checkpoint.base, self.tokenizer, self.checkpoint.adapter, **of_vllm)

    @cached_property
    def features(self) -> FeatureNetwork:
        options, base = self.options, self.feature_checkpoint.base
        if options.feature_model is None:
            logger.info(f"calibration: no --feature-model, so features are those of {base}; compare only with the same")
        if base == self.checkpoint.base:  # the weights are here already
            source: Source = "shared" if self.checkpoint.adapter is None else "adapter_off"
            return FeatureNetwork(self.model, source=source, **tap_settings(options.method))
        return other_feature_network(
            base, self.model, options.method, self.tokenizer, self.dtype, options.trust_remote_code
        )


Subject = LoadedSubject | CheckpointSubject
