"""`ebft sft`: TRL's SFTTrainer on the documents, splits and answer flags that EBFT trains on.

TRL takes rows that are tokenised already: `input_ids`, and `labels` with -100 where a token does not count. So the
mask of answers is ebft's own, the same for all formats of data.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow
from datasets import Dataset
from torch import Tensor
from trl import SFTConfig, SFTTrainer
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from ebft.baselines import trl_trainers
from ebft.config.baselines import SFTSettings
from ebft.data.packing import PADDING, SequenceDataset
from ebft.errors import DataError
from ebft.loading import peft_config
from ebft.runtime import processes
from ebft.train.callbacks import Samples
from ebft.train.costs import CostTracker, wide
from ebft.train.run import TrainingMethod
from ebft.train.sequences import Loaded, beyond_positions, cut_tokens, describe, in_a_sequence

logger = logging.getLogger(__name__)

IGNORED = -100


@dataclass
class SFTArguments(SFTConfig):
    save_log_spaced: bool = False
    eval_tasks_every: int | None = None


class MeasuredSFT(trl_trainers.Measured, SFTTrainer):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.costs = CostTracker()
        super().__init__(*args, **kwargs)

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        counts = {"tokens": inputs["attention_mask"].sum(), "targets": (inputs["labels"][:, 1:] != IGNORED).sum()}
        tokens, targets = processes.sum_over_processes(counts).values()
        # TRL computes logits only where a label counts.
        self.costs.add(tokens=tokens, flops=self.flops.over(wide(tokens), wide(targets)) * self.flops.update)
        return super().training_step(model, inputs, num_items_in_batch)

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
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
    tokens, labels, lengths, parts = [], [], [], []
    for row in range(len(dataset)):
        sequence = dataset[row]
        documents = sequence["document_ids"].numpy()
        real = documents != PADDING
        ids = sequence["input_ids"].numpy()[real]
        counted = sequence["answer_mask"].numpy()[real] if answer_only else np.ones(len(ids), bool)
        begins = np.flatnonzero(np.diff(documents[real], prepend=PADDING)) if apart else np.zeros(1, int)
        predicted = counted.copy()
        predicted[begins] = False  # nothing predicts the first token
        if not predicted.any():
            continue
        tokens.append(ids.astype(np.int32))
        labels.append(np.where(predicted if apart else counted, ids, IGNORED).astype(np.int32))
        lengths.append(len(ids))
        parts.append(np.diff(begins, append=len(ids)))
    if not tokens:
        raise DataError(
            "no token to train on: no answer lies within the first max_length tokens of a document; raise max_length, "
            "or set loss_on_answers=false"
        )
    offsets = pyarrow.array(np.cumsum([0, *lengths]), pyarrow.int64())
    columns = {
        name: pyarrow.LargeListArray.from_arrays(offsets, pyarrow.array(np.concatenate(values)))
        for name, values in (("input_ids", tokens), ("labels", labels))
    }
    if apart:
        columns["seq_lengths"] = pyarrow.array(parts)
    return Dataset(pyarrow.table(columns))


def training_rows(loaded: Loaded) -> Dataset:
    """The training documents in sequences of `max_length`, with notes on what is lost."""
    settings, given = loaded.recipe.training, loaded.train_set
    assert isinstance(settings, SFTSettings)
    sequences = SequenceDataset(given.index, settings.max_length, settings.pack_training, given.pad_token_id)
    apart = settings.pack_training and settings.document_masks
    rows = token_rows(sequences, settings.trains_on_answers, apart)
    notes = [cut_tokens(sequences, "max_length"), beyond_positions(loaded.model, sequences, "max_length", apart)]
    if left_out := len(sequences) - len(rows):
        notes.append(f"{left_out} of {len(sequences)} sequences are left out: no token to train on within max_length")
    for note in notes if processes.rank() == 0 else ():
        if note is not None:
            logger.warning(note)
    return rows


def _arguments(settings: Any) -> Any:
    return trl_trainers.trl_arguments(
        SFTArguments,
        settings,
        max_length=settings.max_length,
        packing=False,
        padding_free=False,
        dataset_kwargs={"skip_prepare_dataset": True},
    )


def build(loaded: Loaded) -> MeasuredSFT:
    recipe, tokenizer, validation_set = loaded.recipe, loaded.tokenizer, loaded.validation_set
    settings: Any = recipe.training
    trl_trainers.check(recipe)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token  # what TRL would take; padding is masked by length
    collator = None  # TRL's own
    if settings.pack_training and settings.document_masks:
        collator = DataCollatorForLanguageModeling(tokenizer.pad_token_id, return_position_ids=True)
    trainer = MeasuredSFT(
        model=loaded.model,
        args=_arguments(settings),
        train_dataset=training_rows(loaded),
        # Never looked at: `evaluate` validates as EBFT does. transformers wants one where evaluation is asked for.
        eval_dataset=None if validation_set is None else token_rows(validation_set, False),
        processing_class=tokenizer,
        data_collator=collator,
        peft_config=peft_config(recipe),
    )
    trl_trainers.equip(trainer, loaded, "sft")
    trainer.add_callback(Samples(trainer, settings.samples_every))
    return trainer


def plan(loaded: Loaded) -> list[str]:
    settings: Any = loaded.recipe.training
    _arguments(settings)  # for its errors
    rows = training_rows(loaded)
    tokens = sum(map(len, rows["input_ids"]))
    targets = sum(label != IGNORED for labels in rows["labels"] for label in labels[1:])
    lines = {
        "training sequences": f"{len(rows):,} of at most {settings.max_length} tokens, "
        f"{in_a_sequence(settings.pack_training, settings.document_masks)}, {tokens:,} tokens in all",
        "tokens with a loss": f"{targets:,}",
        "sequences per step": f"{settings.rows_per_step}",
    }
    return describe(loaded, len(rows), settings.rows_per_step, lines)


METHOD = TrainingMethod(
    "sft",
    "supervised fine-tuning (TRL's SFTTrainer)",
    {"loss": "loss", "mean_token_accuracy": "accuracy"},
    build,
    plan,
)
