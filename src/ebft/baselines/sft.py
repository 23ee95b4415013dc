"""`ebft sft`: TRL's SFTTrainer on the documents, splits and answer flags that EBFT trains on.

TRL takes rows that are tokenised already: `input_ids`, and `labels` with -100 where a token does not count. So the
mask of answers is ebft's own, the same for all formats of data.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import numpy as np
from datasets import Dataset
from torch import Tensor, nn
from trl import SFTConfig, SFTTrainer
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from ebft.baselines import trl_trainers
from ebft.config.training import SFTSettings
from ebft.data.packing import PADDING, SequenceDataset
from ebft.errors import DataError
from ebft.runtime import processes
from ebft.train.measured import Inputs
from ebft.train.sequences import Loaded, look_at_lengths, warn

IGNORED = -100


class MeasuredSFT(trl_trainers.Baseline, SFTTrainer):
    method, title = "sft", "supervised fine-tuning (TRL's SFTTrainer)"
    shown: ClassVar = {"loss": "loss", "mean_token_accuracy": "accuracy"}

    @classmethod
    def prepare(cls, loaded: Loaded) -> tuple[int, Callable[[], MeasuredSFT]]:
        """The training documents in sequences of `max_length`, with notes on what is lost."""
        settings, given = loaded.recipe.training, loaded.train_set
        assert isinstance(settings, SFTSettings)
        trl_trainers.check(loaded.recipe)
        own = {"max_length": settings.max_length, "dataset_kwargs": {"skip_prepare_dataset": True}}
        arguments = trl_trainers.trl_arguments(SFTConfig, settings, packing=False, padding_free=False, **own)
        sequences = SequenceDataset(given.index, settings.max_length, settings.pack_training, given.pad_token_id)
        apart = settings.pack_training and settings.document_masks
        rows = token_rows(sequences, settings.trains_on_answers, apart)
        look_at_lengths(loaded.model, sequences, "max_length", apart)
        if left_out := len(sequences) - len(rows):
            warn(f"{left_out} of {len(sequences)} sequences are left out: no token to train on within max_length")
        collator = None  # TRL's own
        if apart:
            collator = DataCollatorForLanguageModeling(given.pad_token_id, return_position_ids=True)
        return len(rows), partial(cls.made, loaded, arguments, rows, data_collator=collator)

    def training_step(self, model: nn.Module, inputs: Inputs, num_items_in_batch: Any = None) -> Tensor:
        counts = {"tokens": inputs["attention_mask"].sum(), "targets": (inputs["labels"][:, 1:] != IGNORED).sum()}
        tokens, targets = map(float, processes.sum_over_processes(counts).values())
        # TRL computes logits only where a label counts.
        self.spend(tokens=tokens, flops=self.flops.over(tokens, targets) * self.flops.update)
        return super().training_step(model, inputs, num_items_in_batch)

    def compute_loss(self, model: nn.Module, inputs: Inputs, *args: Any, **kwargs: Any) -> Any:
        """Rows with several documents apart have `position_ids` that begin anew with each. transformers takes that for
        their masks if it is given no other; padding is on the right, where no token of a document sees it."""
        if "position_ids" not in inputs:
            return super().compute_loss(model, inputs, *args, **kwargs)

        def without_mask(attention_mask: Tensor, **given: Any) -> Any:
            return model(**given)

        return super().compute_loss(without_mask, inputs, *args, **kwargs)


def token_rows(dataset: SequenceDataset, answer_only: bool, apart: bool = False) -> Dataset:
    """`input_ids` and `labels` of every sequence, without padding; sequences without a target are left out.

    apart: the documents of a sequence do not see each other, and `seq_lengths` says where each ends.
    """
    tokens, labels, parts = [], [], []
    for row in range(len(dataset)):
        sequence = {name: value.numpy() for name, value in dataset[row].items()}
        real = sequence["document_ids"] != PADDING
        documents, ids = sequence["document_ids"][real], sequence["input_ids"][real]
        counted = sequence["answer_mask"][real] if answer_only else np.ones(len(ids), bool)
        begins = np.flatnonzero(np.diff(documents, prepend=PADDING)) if apart else np.zeros(1, int)
        predicted = counted.copy()
        predicted[begins] = False  # nothing predicts the first token
        if predicted.any():
            tokens.append(ids.astype(np.int32))
            labels.append(np.where(predicted if apart else counted, ids, IGNORED).astype(np.int32))
            parts.append(np.diff(begins, append=len(ids)))
    if not tokens:
        ways_out = "raise max_length, or set loss_on_answers=false"
        raise DataError(f"no answer lies within the first max_length tokens of a document; {ways_out}")
    return Dataset.from_dict({"input_ids": tokens, "labels": labels} | ({"seq_lengths": parts} if apart else {}))
