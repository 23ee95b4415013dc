"""The training and validation sequences that a recipe asks for."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from ebft.config.method import MethodConfig
from ebft.config.model_and_data import DataConfig
from ebft.config.recipe import Recipe
from ebft.data.packing import DocumentIndex, SequenceDataset, end_token_ids, mix, pad_token_id
from ebft.data.row_format import Row, RowFormat, ends_with_space, is_glued
from ebft.data.rows import LOOKED_AT, read_rows
from ebft.data.store import TokenStore, tokenize_source
from ebft.errors import ConfigError, DataError
from ebft.iteration import check_sequences
from ebft.model.backbone import base_model, decoder_of, text_config

logger = logging.getLogger(__name__)

ENDS_LEFT_OUT = (
    "anchors from which a text ends within a rollout are left out, so feature matching teaches the model not to end; "
    "set short_truths=true, or short_truths=false if this is intended"
)
ENDS_NOT_MEASURED = (
    "anchors from which a text ends within a rollout are left out, so the feature-matching loss favours models that do "
    "not end; set short_truths=true, or short_truths=false if this is intended"
)
FEW = 20  # validation sequences that tell little
_LEARNT_POSITIONS = ("wpe", "embed_positions")  # GPT-2 and its kin, OPT
LONGEST_BLANK = 8  # tokens of an answer that is looked at for being whitespace, its end token among them


def _some_rows(recipe: Recipe) -> list[Row]:
    data = recipe.data
    return [row for source in data.dataset for row in islice(read_rows(source, data.dataset_split), LOOKED_AT)]


def prompt_kinds(recipe: Recipe) -> list[str]:
    """How prompts are made of the rows, as some of them show it: what `ebft generate` has to know of a run."""
    return sorted({recipe.data.row_format.prompt_kind(row) for row in _some_rows(recipe)})


def _check_columns(recipe: Recipe, rows: Sequence[Row]) -> None:
    """A column that was named must be in one of the datasets, or a slip in its name would train on another one."""
    named = {kind: name for kind, name in recipe.data.columns.items() if name != kind}
    for kind, name in named.items():
        if not any(name in row for row in rows):
            there = ", ".join(map(repr, dict.fromkeys(column for row in rows for column in row))) or "none"
            raise DataError(f"{kind}_column={name!r} is in none of the datasets; they have the columns {there}")


def glued_prompt(rows: Sequence[Row]) -> str | None:
    """That prompts and answers of standard rows run into each other, and where."""
    for row in rows:
        if "prompt" in row and is_glued(row["prompt"], row["completion"]):
            joint = f"{row['prompt'][-20:]}{row['completion'][:20]}"
            return f"nothing stands between prompts and answers: the model sees {joint!r}"
    return None


def glued_rows(dataset: Any) -> str | None:
    """The same of rows that are given in Python, if they can be read twice."""
    if isinstance(dataset, SequenceDataset) or not hasattr(dataset, "__getitem__"):
        return None
    return glued_prompt([RowFormat().standard(row) for row in islice(dataset, LOOKED_AT)])


def _blank_answers(store: TokenStore, tokenizer: Any) -> NDArray[np.bool_]:
    """[documents] whether the answer after a prompt is nothing but whitespace and an end token."""
    blank, counts, offsets = np.zeros(len(store), bool), np.asarray(store.answer_counts), np.asarray(store.offsets)
    tokens, answers = np.asarray(store.tokens), np.asarray(store.answers)
    known: dict[bytes, bool] = {}
    for place in np.flatnonzero((counts > 0) & (counts <= LONGEST_BLANK) & (counts < store.lengths)):
        inside = slice(offsets[place], offsets[place + 1])
        answer = tokens[inside][answers[inside] > 0]
        key = answer.tobytes()
        if key not in known:
            known[key] = not tokenizer.decode(answer.tolist(), skip_special_tokens=True).strip()
        blank[place] = known[key]
    return blank


def check_answers(
    store: TokenStore, tokenizer: Any, source: str, rows: Iterable[Row], row_format: RowFormat | None = None
) -> list[str]:
    """Notes on rows whose answer is missing, empty or all of the text, often by a slip; an error if no row has one."""
    counts, lengths = store.answer_counts, store.lengths
    if not counts.any():  # only a conversation can be without: text and completions end with an answer's end token
        standard = map((row_format or RowFormat()).standard, islice(rows, LOOKED_AT))
        turns = [turn for row in standard for turn in (row["messages"] if "messages" in row else row["completion"])]
        roles = ", ".join(sorted({str(turn["role"]) for turn in turns})) or "unknown"  # of rows that are read only once
        raise DataError(
            f"{source}: no row has an assistant turn; roles found: {roles}; give answers the role 'assistant', or "
            "plain text in a column 'text'"
        )
    whole = counts == lengths
    kinds = {
        ("without an assistant turn", "nothing in them is an answer"): counts == 0,
        ("with an empty answer", "they teach the model to end at once"): _blank_answers(store, tokenizer),
        ("without a prompt", "all of their text is an answer"): whole & (not whole.all()),
    }
    return [
        f"{source}: rows {kind}: {which.sum()} of {len(store)} (first: row {which.argmax() + 1}); {effect}"
        for (kind, effect), which in kinds.items()
        if which.any()
    ]


def warnings_about(recipe: Recipe, rows: Sequence[Row]) -> list[str]:
    """What is legal and often not meant, as some rows show it."""
    row_format, training, found = recipe.data.row_format, recipe.training, []
    standard = [row_format.standard(row) for row in rows] if recipe.command != "rlvr" else []
    if recipe.data.prompt_separator is None and (glued := glued_prompt(standard)) is not None:
        found.append(f"{glued}; set prompt_separator to ' ' or '\\n', or to '' if this is intended")
    asked = [row.get("prompt") for row in standard] or [row_format.prompt_of(row) for row in rows]
    if number := sum(map(ends_with_space, asked)):
        found.append(
            f"{number} of the first {len(rows)} prompts end with a space, which most tokenizers would make part of the "
            "word after it; end them without, and set prompt_separator to ' ', which begins the answers with it"
        )
    if training.leaves_ends_out and "short_truths" not in recipe.given:
        found.append(ENDS_LEFT_OUT if recipe.command == "train" else ENDS_NOT_MEASURED)
    if recipe.command == "train" and (training.samples == 1 or (training.samples == 2 and training.alpha > 0)):
        term = "rewards" if training.samples == 1 else "the diversity term"
        found.append(
            f"samples={training.samples} leaves {term} without a baseline, so that gradients are several times "
            "noisier; set samples=4"
        )
    if recipe.data.prompt_separator and standard and not any("completion" in row for row in standard):
        found.append("prompt_separator has no effect: no row has a prompt and a completion for it to be between")
    return found


def trained_part(recipe: Recipe, index: DocumentIndex) -> str:
    """What of the documents is trained on, in words: the first line of a run."""
    if recipe.command == "rlvr":
        return f"the prompts of {len(index):,} documents"
    tokens, answers = int(index.lengths.sum()), int(index.answer_counts.sum())
    only_answers = getattr(recipe.training, "trains_on_answers", recipe.training.answer_only)  # SFT has its own word
    of = f"{len(index):,} documents"
    if not only_answers or answers == tokens:
        return f"all {tokens:,} tokens of {of}"
    return f"the answers of {of}: {answers:,} of their {tokens:,} tokens"


def _few_sequences(data: DataConfig, validation_set: SequenceDataset) -> str | None:
    if (number := len(validation_set)) >= FEW:
        return None
    remedy = "give a larger validation_dataset" if data.validation_dataset else "raise validation_split"
    if number == data.validation_sequences:
        remedy = "raise validation_sequences"
    return f"validation has {number} sequence{'s' * (number > 1)}: its standard errors will be large; {remedy}"


def also_trained_on(index: DocumentIndex, validation: DocumentIndex) -> str | None:
    """Copies of training rows in the validation data: on these, a model that memorises looks like one that learns."""
    if not (seen := validation.count_also_in(index)):
        return None
    return (
        f"{seen:,} of {len(validation):,} validation rows are also in the training data: they measure what was "
        "memorised, not what was learnt; remove duplicate rows, or validate on others"
    )


def cut_documents(dataset: SequenceDataset, setting: str) -> str | None:
    """How much is lost where every document is a row of its own; the length of a row has the name `setting`."""
    lengths = dataset.lengths
    cut = np.maximum(lengths - dataset.context_length, 0)
    if dataset.packing or not cut.any():
        return None
    return (
        f"{setting}={dataset.context_length} cuts {np.count_nonzero(cut):,} of {len(cut):,} documents, and with them "
        f"{cut.sum() / lengths.sum():.1%} of the tokens"
    )


def beyond_positions(model: Any, dataset: SequenceDataset, config: MethodConfig) -> str | None:
    """That the sequences of EBFT, or of a validation, are longer than the model says it was made for."""
    longest = config.context_length
    if config.document_masks or not config.packing:  # positions begin anew with every document
        longest = min(longest, int(dataset.lengths.max()))
    return more_than_known(model, longest, "context_length", config.context_length)


def more_than_known(model: Any, longest: int, setting: str, value: int) -> str | None:
    """That a sequence has more tokens than the model was made for, because of what a setting allows. Rotary positions
    have no end, and no error; of those that are learnt there are no more."""
    known = getattr(text_config(model), "max_position_embeddings", None)
    if not isinstance(known, int) or longest <= known:
        return None
    decoder = decoder_of(base_model(model))
    if any(isinstance(getattr(decoder, table, None), nn.Embedding) for table in _LEARNT_POSITIONS):
        raise ConfigError(
            f"{setting}={value} is longer than the model, which has {known} positions; use {setting}<={known}"
        )
    return (
        f"{setting}={value} is longer than the model was made for (max_position_embeddings={known}), and what it "
        f"computes beyond may be of little use; use {setting}<={known}"
    )


def load_data(
    recipe: Recipe, tokenizer: Any, needs_anchors: bool = True
) -> tuple[SequenceDataset, SequenceDataset | None]:
    """Training and validation sequences. EBFT needs an anchor somewhere in the training text; baselines do not."""
    data, training = recipe.data, recipe.training

    def tokenized(source: str, split: str) -> DocumentIndex:
        store = tokenize_source(source, tokenizer, split, data.row_format, data.limit_documents)
        if recipe.command != "rlvr":  # which takes prompts, and rewards what the model answers
            notes = check_answers(store, tokenizer, source, read_rows(source, split), data.row_format)
            for note in notes if training.process_index == 0 else ():
                logger.warning(note)
        return DocumentIndex.of(store)

    def sequences(index: DocumentIndex) -> SequenceDataset:
        return SequenceDataset(index, training.context_length, training.packing, pad_token_id(tokenizer))

    rows = _some_rows(recipe)
    _check_columns(recipe, rows)
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
    if training.process_index == 0:
        held_out = "" if validation is None else f"; {len(validation):,} for validation"
        logger.info(f"training on {trained_part(recipe, index)}{held_out}")
        for warning in warnings_about(recipe, rows):
            logger.warning(warning)
    if needs_anchors:
        check_sequences(train_set, training, end_token_ids(tokenizer, training.completions_end))
        if training.process_index == 0 and (cut := cut_documents(train_set, "context_length")) is not None:
            logger.warning(f"{cut}; raise it, or set packing=true")
        if training.process_index == 0 and len(train_set) < training.rows_per_step:
            logger.warning(
                f"a step takes {training.rows_per_step} sequences and there are {len(train_set)}: every step sees all "
                "of the data; lower per_device_train_batch_size, gradient_accumulation_steps or context_length"
            )
    if validation is None:
        return train_set, None
    validation_set = sequences(validation).first(data.validation_sequences)
    if training.process_index == 0:
        for found in (_few_sequences(data, validation_set), also_trained_on(index, validation_set.index)):
            if found is not None:
                logger.warning(found)
    return train_set, validation_set
