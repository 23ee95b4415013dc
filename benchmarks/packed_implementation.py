"""One iteration as ebft computes it: all completions packed behind one copy of their context, each prefix once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from drawn_sharing import shared_draws
from ebft.config.method import MethodConfig
from ebft.iteration import Packing, Rollouts, loss_of, micro_batches, packings, roll_out
from ebft.method.layout import PackedLayout
from ebft.method.rewards import Whitening, feature_matching_rewards, leave_one_out_advantages
from ebft.method.sampling import sequence_seeds
from ebft.model.backbone import compile_layers, decoder_of
from ebft.model.features import FeatureNetwork
from step_settings import TEMPERATURE, Settings


@dataclass
class Rolled:
    """Contexts [b, T] with their rollouts."""

    contexts: Tensor
    rollouts: Rollouts
    layout: PackedLayout
    method: MethodConfig

    @cached_property
    def packings(self) -> list[Packing]:
        """For the frozen network and for the update."""
        return packings(self.layout, self.contexts, self.rollouts, self.method)


class PackedImplementation:
    """The parts of an iteration."""

    def __init__(self, model: Any, settings: Settings, trees: bool | None = None) -> None:
        self.model, self.settings = model, settings
        self.autocast = settings.lora and settings.dtype == "bfloat16"
        self.layout = settings.layout.to(settings.device)
        self.method = MethodConfig(
            context_length=settings.context_length,
            horizon=settings.horizon,
            stride=settings.stride,
            samples=settings.samples,
            temperature=TEMPERATURE,
            gamma=settings.gamma,
            attention_backend=settings.backend,
            trees=settings.trees if trees is None else trees,
        )
        # "joint" is what the reference implementation does; it costs the same as the default.
        source: Any = "adapter_off" if settings.lora else "copy"
        self.frozen = FeatureNetwork(model, normalize="joint", source=source, backend=settings.backend)
        if settings.compile:
            compile_layers(decoder_of(model))
            compile_layers(self.frozen.decoder)
        self.step = 0
        self.last: Rolled | None = None

    def rollout(self, contexts: Tensor) -> Rolled:
        """Other completions at every call."""
        self.step += 1
        rows = torch.arange(contexts.shape[0], device=contexts.device)
        seeds = sequence_seeds(0, self.step, rows)
        with self.precision(), shared_draws() if self.settings.sharing else nullcontext():
            rollouts, _ = roll_out(self.model, contexts, self.layout, seeds, self.method, None)
        self.last = Rolled(contexts, rollouts, self.layout, self.method)
        return self.last

    def features(self, rolled: Rolled) -> tuple[Tensor, Tensor]:
        rows = range(rolled.contexts.shape[0])
        layout = rolled.packings[0].of_rows(rows, slice(None))
        return self.frozen(layout.pack(rolled.contexts, rolled.rollouts.completions), layout)

    def rewards(
        self, rolled: Rolled, generated: Tensor, truth: Tensor, whitening: Whitening = "reference"
    ) -> tuple[Tensor, Tensor]:
        return feature_matching_rewards(generated, truth, whitening, rolled.rollouts.groups)

    def advantages(self, rolled: Rolled, generated: Tensor, truth: Tensor) -> Tensor:
        alignment, diversity = self.rewards(rolled, generated, truth)
        return leave_one_out_advantages(alignment, diversity)

    def update(self, rolled: Rolled, advantages: Tensor) -> Tensor:
        """The loss, after its gradient has been added to the model's parameters."""
        b, T = rolled.contexts.shape
        size = self.settings.micro_batch or b
        sizes = [min(size, b - start) for start in range(0, b, size)]
        total = torch.zeros((), device=rolled.contexts.device)
        counts = {
            "generated_tokens": torch.full_like(total, rolled.rollouts.completions.numel()),
            "truth_tokens": torch.full_like(total, b * (T - 1)),
        }
        for batch in micro_batches(sizes, rolled.contexts, rolled.rollouts, rolled.packings[1], advantages):
            with self.precision():
                loss = loss_of(self.model, batch | counts, self.method).loss
                loss.backward()
                total += loss.detach()
        return total

    @contextmanager
    def precision(self) -> Iterator[None]:
        with torch.autocast(self.settings.device, torch.bfloat16, enabled=self.autocast):
            yield
