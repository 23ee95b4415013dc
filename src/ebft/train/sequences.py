"""The training and validation sequences that a recipe asks for."""

from __future__ import annotations

from typing import Any

from ebft.config.recipe import Recipe
from ebft.data.packing import DocumentIndex, SequenceDataset, end_token_ids, mix, pad_token_id
from ebft.data.rows import read_rows
from ebft.data.store import tokenize_source
from ebft.errors import DataError
from ebft.iteration import check_sequences


def _check_columns(recipe: Recipe) -> None:
    """A column that was named must be in one of the datasets, or a slip in its name would train on another one."""
    data = recipe.data
    named = {kind: name for kind, name in data.columns.items() if name != kind}
    if not named:
        return
    rows = [next(iter(read_rows(source, data.dataset_split)), {}) for source in data.dataset]
    for kind, name in named.items():
        if not any(name in row for row in rows):
            there = ", ".join(map(repr, dict.fromkeys(column for row in rows for column in row))) or "none"
            raise DataError(f"{kind}_column={name!r} is in none of the datasets; they have the columns {there}")


def load_data(
    recipe: Recipe, tokenizer: Any, needs_anchors: bool = True
) -> tuple[SequenceDataset, SequenceDataset | None]:
    """Training and validation sequences. EBFT needs an anchor somewhere in the training text; baselines do not."""
    data, training = recipe.data, recipe.training

    def tokenized(source: str, split: str) -> DocumentIndex:
        return DocumentIndex.of(tokenize_source(source, tokenizer, split, data.columns, data.limit_documents))

    def sequences(index: DocumentIndex) -> SequenceDataset:
        return SequenceDataset(index, training.context_length, training.packing, pad_token_id(tokenizer))

    _check_columns(recipe)
    indices = [tokenized(source, data.dataset_split) for source in data.dataset]
    index = indices[0]
    if len(indices) > 1:
        index = mix(indices, data.dataset_weights or [len(i) for i in indices], data.split_seed)
    index, _ = index.without_test(data.test_split, data.split_seed)
    validation: DocumentIndex | None = None
    if data.validation_dataset is not None:
        validation = tokenized(data.validation_dataset, data.validation_dataset_split)
    elif data.validation_split:
        if len(index) < 2:
            raise DataError("one document cannot be split; set validation_split=0 or give a validation_dataset")
        index, validation = index.split(data.validation_split, data.split_seed)
    train_set = sequences(index)
    if needs_anchors:
        check_sequences(train_set, training, end_token_ids(tokenizer, training.completions_end))
    return train_set, None if validation is None else sequences(validation).first(data.validation_sequences)
