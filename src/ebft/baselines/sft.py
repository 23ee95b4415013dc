"""`ebft sft`: TRL's SFTTrainer on the documents, splits and answer flags that EBFT trains on.

TRL takes rows that are tokenised already: `input_ids`, and `labels` with -100 where a token does not count. So the
mask of answers is ebft's own, the same for all formats of data.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow
from datasets import Dataset
from pyarrow.compute import list_flatten, list_value_length
from pyarrow.compute import max as arrow_max
from torch import Tensor
from trl import SFTConfig, SFTTrainer
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from ebft.baselines import trl_trainers
from ebft.config.baseline_settings import SFTSettings
from ebft.config.recipe import Recipe
from ebft.data.packing import PADDING, SequenceDataset
from ebft.errors import DataError
from ebft.loading import peft_config
from ebft.runtime import processes
from ebft.train.costs import CostTracker, wide
from ebft.train.dry_run import columns, in_a_sequence, steps_of
from ebft.train.sequences import beyond_positions, cut_documents, more_than_known
from ebft.train.training_method import Loaded, TrainingMethod

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


def training_rows(recipe: Recipe, dataset: SequenceDataset) -> Dataset:
    """The documents of a dataset in sequences of `max_length`."""
    settings = recipe.training
    assert isinstance(settings, SFTSettings)
    sequences = SequenceDataset(dataset.index, settings.max_length, settings.pack_training, dataset.pad_token_id)
    rows = token_rows(sequences, settings.trains_on_answers, _apart(settings))
    if (left_out := len(sequences) - len(rows)) and processes.rank() == 0:
        logger.warning(
            f"{left_out} of {len(sequences)} training sequences are left out: no token to train on within "
            f"max_length={settings.max_length}"
        )
    if (cut := cut_documents(sequences, "max_length")) is not None and processes.rank() == 0:
        logger.warning(
            f"{cut}; ebft train would use these, so for a fair comparison raise it, or set pack_training=true"
        )
    return rows


def _checked_rows(loaded: Loaded) -> Dataset:
    """What is trained on, with notes on what is odd about it."""
    settings: Any = loaded.recipe.training
    rows = training_rows(loaded.recipe, loaded.train_set)
    table = rows.data
    lengths = list_flatten(table["seq_lengths"]) if _apart(settings) else list_value_length(table["input_ids"])
    notes = [more_than_known(loaded.model, arrow_max(lengths).as_py(), "max_length", settings.max_length)]
    if loaded.validation_set is not None:
        notes.append(beyond_positions(loaded.model, loaded.validation_set, settings))
    if settings.pack_training and settings.max_length != settings.context_length:
        notes.append(
            f"max_length={settings.max_length} is not context_length={settings.context_length}: these are not the "
            "sequences of ebft train; to compare with it, set both alike"
        )
    for note in notes if processes.rank() == 0 else ():
        if note is not None:
            logger.warning(note)
    return rows


def _apart(settings: Any) -> bool:
    """Whether several documents of a sequence are kept from seeing each other, as EBFT's are."""
    return settings.pack_training and settings.document_masks


def _arguments(settings: Any) -> Any:
    return trl_trainers.trl_arguments(
        SFTArguments,
        settings,
        max_length=settings.max_length,
        packing=False,
        padding_free=False,
        dataset_kwargs={"skip_prepare_dataset": True},
        save_log_spaced=settings.save_log_spaced,
        eval_tasks_every=settings.eval_tasks_every,
    )


def build(loaded: Loaded) -> MeasuredSFT:
    recipe, tokenizer, validation_set = loaded.recipe, loaded.tokenizer, loaded.validation_set
    settings: Any = recipe.training
    trl_trainers.check(recipe)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token  # what TRL would take; padding is masked by length
    arguments = _arguments(settings)
    collator = None  # TRL's own
    if _apart(settings):
        collator = DataCollatorForLanguageModeling(tokenizer.pad_token_id, return_position_ids=True)
    trainer = MeasuredSFT(
        model=loaded.model,
        args=arguments,
        train_dataset=_checked_rows(loaded),
        # Never looked at: `evaluate` validates as EBFT does. transformers wants one where evaluation is asked for.
        eval_dataset=None if validation_set is None else token_rows(validation_set, False),
        processing_class=tokenizer,
        data_collator=collator,
        peft_config=peft_config(recipe),
    )
    trl_trainers.equip(trainer, recipe, validation_set, tokenizer)
    trainer.add_callback(trl_trainers.ValidationSamples(trainer, settings.samples_every))
    return trainer


def plan(loaded: Loaded) -> list[str]:
    settings: Any = loaded.recipe.training
    _arguments(settings)  # for its errors
    rows = _checked_rows(loaded)
    per_step = settings.rows_per_step
    an_epoch = math.ceil(len(rows) / per_step)
    first = rows[0]
    tokens = sum(len(row) for row in rows["input_ids"])
    targets = sum(label != IGNORED for row in rows["labels"] for label in row[1:])
    lines = columns(
        {
            "model": f"{loaded.recipe.model.model}, {sum(p.numel() for p in loaded.model.parameters()):,} parameters",
            "documents": f"{len(loaded.train_set.index):,}",
            "training sequences": f"{len(rows):,} of at most {settings.max_length} tokens, "
            f"{in_a_sequence(settings.pack_training, settings.document_masks)}, {tokens:,} tokens in all",
            "tokens with a loss": f"{targets:,}",
            "validation sequences": "none" if loaded.validation_set is None else f"{len(loaded.validation_set):,}",
            "steps": f"{steps_of(settings, an_epoch):,} ({an_epoch:,} an epoch) of {per_step} sequences",
        }
    )
    marked = repr(_marked(first["input_ids"], first["labels"], loaded.tokenizer))[1:-1][:2000]
    return [*lines, "", "One sequence; what the loss counts is between [ and ]:", f"  {marked}"]


def _marked(tokens: list[int], labels: list[int], tokenizer: Any) -> str:
    parts, start = [], 0
    for place in range(1, len(tokens) + 1):
        if place == len(tokens) or (labels[place] == IGNORED) != (labels[start] == IGNORED):
            text = tokenizer.decode(tokens[start:place])
            parts.append(text if labels[start] == IGNORED else f"[{text}]")
            start = place
    return "".join(parts)


def details(recipe: Recipe) -> str:
    settings: Any = recipe.training
    return (
        f"{settings.rows_per_step} sequences of at most {settings.max_length} tokens; loss on "
        f"{'answers only' if settings.trains_on_answers else 'all tokens'}, learning rate {settings.learning_rate} "
        f"({getattr(settings.lr_scheduler_type, 'value', settings.lr_scheduler_type)}), seed {settings.seed}."
    )


METHOD = TrainingMethod(
    "sft",
    "supervised fine-tuning (TRL's SFTTrainer)",
    "[ebft, trl, sft]",
    {"loss": "loss", "mean_token_accuracy": "accuracy"},
    False,
    build,
    plan,
    details,
)
