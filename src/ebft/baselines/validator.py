"""EBFT's validation for trainers of TRL."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ebft.config.training import EBFTConfig
from ebft.data import loaders
from ebft.data.packing import SequenceDataset, collate, end_token_ids, to_device
from ebft.iteration import prepare_window
from ebft.loading import feature_network
from ebft.method.measures import Record
from ebft.model.backbone import evaluating, prepare_model
from ebft.model.working_copy import WorkingCopy
from ebft.validation import validate


class Validator:
    """Measures a model on the validation sequences, against a network that is frozen now."""

    def __init__(
        self, model: Any, config: EBFTConfig, dataset: SequenceDataset, tokenizer: Any, device: torch.device
    ) -> None:
        self.config, self.dataset, self.device = config, dataset, device
        prepare_model(model)
        self.features = feature_network(model, config, tokenizer)
        self.end_token_ids = end_token_ids(tokenizer, config.completions_end)
        self._copy: WorkingCopy | None = None

    def _compute_model(self, model: Any) -> Any:
        """As EBFTTrainer computes: with bf16, on a copy of the weights in bf16. An adapter's model uses autocast.

        The copy is kept, as EBFTTrainer's is: graphs of its passes serve the next validation too.
        """
        if not self.config.bf16 or hasattr(model, "disable_adapter"):
            return model
        if self._copy is None or self._copy.trained is not model:
            self._copy = WorkingCopy(model)
        else:
            self._copy.refresh()
        return self._copy.model

    def _autocast(self, model: Any) -> Any:
        enabled = self.config.bf16 and hasattr(model, "disable_adapter")
        return torch.autocast(self.device.type, torch.bfloat16, enabled=enabled)

    @torch.no_grad()
    def measure(self, model: Any) -> list[Record]:
        """A record of each sequence."""
        loader = loaders.evaluation_loader(self.config, self.dataset)
        with self._autocast(model):
            compute_model = self._compute_model(model)
            return validate(
                compute_model, self.features, loader, self.config, self.end_token_ids, self.device, len(self.dataset)
            )

    @torch.no_grad()
    def example(self, model: Any, step: int) -> dict[str, Tensor]:
        """Rollouts in the first validation sequence, for the table of samples."""
        batch = to_device(collate([self.dataset[0]]), self.device)
        with evaluating(model), self._autocast(model):
            compute_model = self._compute_model(model)
            return prepare_window(compute_model, self.features, [batch], self.config, step, self.end_token_ids).example
