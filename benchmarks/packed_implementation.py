"""One iteration as ebft computes it: all completions packed behind one copy of their context."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ebft.method.advantages import leave_one_out_advantages
from ebft.method.losses import ebft_loss
from ebft.method.rewards import Whitening, feature_matching_rewards, token_groups
from ebft.model.backbone import compile_layers, decoder_of, output_head, packed_hidden_states
from ebft.model.features import FeatureNetwork
from ebft.model.rollout import rollout
from step_settings import TEMPERATURE, Settings


class PackedImplementation:
    """The parts of an iteration; `sequences` are packed, [b, S]."""

    def __init__(self, model: Any, settings: Settings) -> None:
        self.model = model
        self.autocast = settings.lora and settings.dtype == "bfloat16"
        self.layout = settings.layout.to(settings.device)
        # "joint" is what the reference implementation does; it costs the same as the default.
        source: Any = "adapter_off" if settings.lora else "copy"
        self.frozen = FeatureNetwork(model, normalize="joint", source=source, backend=settings.backend)
        if settings.compile:
            compile_layers(decoder_of(model))
            self.frozen.compile_layers()
        self.gamma, self.backend, self.micro_batch = settings.gamma, settings.backend, settings.micro_batch

    def rollout(self, contexts: Tensor) -> Tensor:
        completions = rollout(self.model, contexts, self.layout, TEMPERATURE, backend=self.backend)
        return self.layout.pack(contexts, completions)

    def features(self, sequences: Tensor) -> tuple[Tensor, Tensor]:
        generated, truth = self.frozen(sequences, self.layout)
        return generated, truth

    def rewards(
        self, sequences: Tensor, generated: Tensor, truth: Tensor, whitening: Whitening = "reference"
    ) -> tuple[Tensor, Tensor]:
        return feature_matching_rewards(generated, truth, whitening, self.groups(sequences))

    def groups(self, sequences: Tensor) -> Tensor:
        """[b, B, n]: samples of a context with the same tokens have the same number."""
        return token_groups(self.layout.completions(sequences))

    def advantages(self, sequences: Tensor, generated: Tensor, truth: Tensor) -> Tensor:
        alignment, diversity = self.rewards(sequences, generated, truth)
        return leave_one_out_advantages(alignment, diversity)

    def update(self, sequences: Tensor, advantages: Tensor) -> Tensor:
        """The loss, after its gradient has been added to the model's parameters."""
        b, T = sequences.shape[0], self.layout.context_length
        generated_tokens = float(sequences[:, T:].numel())
        truth_tokens = float(b * (T - 1))
        total = torch.zeros((), device=sequences.device)
        size = self.micro_batch or b
        for ids, weights in zip(sequences.split(size), advantages.split(size), strict=True):
            with torch.autocast(sequences.device.type, torch.bfloat16, enabled=self.autocast):
                hidden = packed_hidden_states(self.model, ids, self.layout, self.backend)
            terms = ebft_loss(
                hidden,
                output_head(self.model),
                ids,
                self.layout,
                weights,
                TEMPERATURE,
                self.gamma,
                generated_tokens=generated_tokens,
                truth_tokens=truth_tokens,
            )
            terms.loss.backward()
            total += terms.loss.detach()
        return total
