"""What a recipe trains on: its data as sequences, the model, what is often not meant about them, and `--dry-run`."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ebft.config.recipe import Recipe
from ebft.data.packing import (
    DocumentIndex,
    SequenceDataset,
    TokenStore,
    end_token_ids,
    mix,
    pad_token_id,
    tokenize_source,
)
from ebft.data.row_format import Row, check_tokenizer, is_glued
from ebft.data.rows import LOOKED_AT, read_rows
from ebft.errors import ConfigError, DataError
from ebft.iteration import check_sequences
from ebft.loading import load_model, load_tokenizer
from ebft.model.backbone import embedding_size, end_tokens_of, text_config
from ebft.runtime import processes

logger = logging.getLogger(__name__)

ENDS_LEFT_OUT = (
    "anchors from which a text ends within a rollout are left out, so feature matching teaches the model not to end; "
    "set short_truths=true, or short_truths=false if this is intended"
)
FEW = 20  # validation sequences that tell little
LONGEST_BLANK = 8  # tokens of an answer that is looked at for being whitespace, its end token among them


@dataclass(frozen=True)
class Loaded:
    """What a run begins with."""

    recipe: Recipe
    train_set: SequenceDataset
    validation_set: SequenceDataset | None
    model: PreTrainedModel
    tokenizer: Any


def load(recipe: Recipe, needs_anchors: bool = True) -> Loaded:
    """Data, tokenizer and model. EBFT needs an anchor somewhere in the training text; baselines do not."""
    data, asked = recipe.data, recipe.training.eval_strategy
    if asked != "no" and not data.validation_split and data.validation_dataset is None:
        where = "set validation_split or validation_dataset, or eval_strategy=no"
        raise ConfigError(f"eval_strategy={getattr(asked, 'value', asked)} needs validation data; {where}")
    tokenizer = load_tokenizer(recipe)
    check_tokenizer(tokenizer)
    with recipe.training.main_process_first():  # it tokenises; the others find the tokens in the cache
        train_set, validation_set = load_data(recipe, tokenizer, needs_anchors)
    model = load_model(recipe)
    check_tokenizer(tokenizer, embedding_size(model), end_tokens_of(model))
    return Loaded(recipe, train_set, validation_set, model, tokenizer)


def load_data(
    recipe: Recipe, tokenizer: PreTrainedTokenizerBase, needs_anchors: bool = True
) -> tuple[SequenceDataset, SequenceDataset | None]:
    """Training and validation sequences."""
    data, training = recipe.data, recipe.training
    _look_at_rows(recipe)

    def tokenized(source: str, split: str) -> DocumentIndex:
        store = tokenize_source(source, tokenizer, split, data.row_format, data.limit_documents)
        if recipe.command != "rlvr":  # which takes prompts, and rewards what the model answers
            look_at_answers(store, tokenizer, f"{source}: ")
        return DocumentIndex.of(store)

    def sequences(index: DocumentIndex) -> SequenceDataset:
        return SequenceDataset(index, training.context_length, training.packing, pad_token_id(tokenizer))

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
        look_at_cuts(train_set, "context_length")
    if validation is None:
        return train_set, None
    validation_set = sequences(validation).first(data.validation_sequences)
    if len(validation_set) < FEW:
        warn(f"validation sequences: {len(validation_set)}; standard errors will be large")
    look_at_copies(index, validation_set.index)
    return train_set, validation_set


# ---- what is often not meant -----------------------------------------------------------------------------------------


def warn(note: str) -> None:
    if processes.rank() == 0:
        logger.warning(note)


def _some_rows(recipe: Recipe) -> list[Row]:
    data = recipe.data
    return [row for source in data.dataset for row in islice(read_rows(source, data.dataset_split), LOOKED_AT)]


def prompt_kinds(recipe: Recipe) -> list[str]:
    """How prompts are made of the rows, as some of them show it: what `ebft generate` has to know of a run."""
    return sorted({recipe.data.row_format.prompt_kind(row) for row in _some_rows(recipe)})


def _look_at_rows(recipe: Recipe) -> None:
    """A column that was named and is not there is an error: a slip in its name would train on another one."""
    data, rows = recipe.data, _some_rows(recipe)
    for kind, name in data.columns.items():
        if name != kind and not any(name in row for row in rows):
            there = ", ".join(map(repr, dict.fromkeys(column for row in rows for column in row))) or "none"
            raise DataError(f"{kind}_column={name!r} is in none of the datasets; they have the columns {there}")
    if recipe.command != "rlvr" and data.prompt_separator is None:
        standard = map(data.row_format.standard, rows)
        if row := next((r for r in standard if "prompt" in r and is_glued(r["prompt"], r["completion"])), None):
            joint = f"{row['prompt'][-20:]}{row['completion'][:20]}"
            ways_out = r"set prompt_separator to ' ' or '\n', or to '' if this is intended"
            warn(f"nothing stands between prompts and answers: the model sees {joint!r}; {ways_out}")
    if recipe.training.leaves_ends_out and "short_truths" not in recipe.given:
        warn(ENDS_LEFT_OUT)


def look_at_answers(store: TokenStore, tokenizer: PreTrainedTokenizerBase, where: str = "") -> None:
    """Rows whose answer is missing or empty, often by a slip; an error if no row has one."""
    counts, offsets = np.asarray(store.answer_counts), np.asarray(store.offsets)
    if not counts.any():  # only a conversation can be without: text and completions end with an answer's end token
        raise DataError(
            "no row has an assistant turn; give answers the role 'assistant', or plain text in a column 'text'"
        )
    places = np.flatnonzero((counts <= LONGEST_BLANK) & (counts < store.lengths))
    inside = [slice(offsets[place], offsets[place + 1]) for place in places]
    answers = [tuple(np.asarray(store.tokens[at])[np.asarray(store.answers[at]) > 0].tolist()) for at in inside]
    blank = {ids for ids in set(answers) if not str(tokenizer.decode(list(ids), skip_special_tokens=True)).strip()}
    if empty := [int(place) + 1 for place, ids in zip(places, answers, strict=True) if ids in blank]:
        warn(f"{where}{len(empty)} of {len(store)} rows have no answer, or an empty one (first: row {empty[0]})")


def look_at_copies(index: DocumentIndex, validation: DocumentIndex) -> None:
    """Copies of training rows in the validation data: on these, a model that memorises looks like one that learns."""
    if seen := validation.count_also_in(index):
        warn(f"{seen:,} of {len(validation):,} validation rows are also in the training data, which measures memory")


def look_at_cuts(dataset: SequenceDataset, setting: str) -> None:
    """How much is lost where every document is a row of its own; the length of a row has the name `setting`."""
    cut = np.maximum(dataset.lengths - dataset.context_length, 0)
    if not dataset.packing and cut.any():
        share = cut.sum() / dataset.lengths.sum()
        warn(f"{setting}={dataset.context_length} cuts {np.count_nonzero(cut):,} documents, {share:.1%} of all tokens")


def look_at_positions(model: PreTrainedModel, dataset: SequenceDataset, setting: str, apart: bool) -> None:
    """Whether sequences, or with documents apart the longest of these, are longer than the model was made for. Rotary
    positions have no end, and give no error."""
    known, longest = getattr(text_config(model), "max_position_embeddings", None), dataset.context_length
    if apart or not dataset.packing:
        longest = min(longest, int(dataset.lengths.max()))
    if known is not None and longest > known:
        warn(f"{setting}={dataset.context_length} is longer than the model was made for; use {setting}<={known}")


# ---- what a run says it does -----------------------------------------------------------------------------------------


def trained_part(recipe: Recipe, index: DocumentIndex) -> str:
    """What of the documents is trained on, in words: the first line of a run."""
    if recipe.command == "rlvr":
        return f"the prompts of {len(index):,} documents"
    tokens, answers = int(index.lengths.sum()), int(index.answer_counts.sum())
    only_answers = getattr(recipe.training, "trains_on_answers", recipe.training.answer_only)  # SFT has its own word
    if not only_answers or answers == tokens:
        return f"all {tokens:,} tokens of {len(index):,} documents"
    return f"the answers of {len(index):,} documents: {answers:,} of their {tokens:,} tokens"


def describe(loaded: Loaded, rows: int, per_step: int, lines: dict[str, str]) -> list[str]:
    """What `--dry-run` prints: the lines of a method, what is the same for all, and a document."""
    model, config, train_set = loaded.recipe.model, loaded.recipe.training, loaded.train_set
    epoch = math.ceil(rows / per_step)
    steps = config.max_steps if config.max_steps > 0 else math.ceil(epoch * config.num_train_epochs)
    lines = {
        "model": f"{model.model}, {loaded.model.num_parameters():,} parameters in {model.model_dtype}",
        "documents": f"{len(train_set.index):,} with {train_set.total_tokens:,} tokens",
        **lines,
        "validation": "none" if loaded.validation_set is None else f"{len(loaded.validation_set):,} sequences",
        "steps": f"{steps:,} ({epoch:,} an epoch)",
    }
    shown = [f"{name:<20}  {value}" for name, value in lines.items()]
    shown += ["", "The first document, as the model sees it:"]
    store, inside = train_set.index.where(0)
    document = zip(store.tokens[inside].tolist(), store.answers[inside].tolist(), strict=True)
    for is_answer, part in islice(groupby(document, key=lambda token: token[1]), 8):
        text = repr(loaded.tokenizer.decode([token for token, _ in part]))
        shown.append(f"  {'answer' if is_answer else 'prompt'}  {text if len(text) <= 300 else f'{text[:300]}...'}")
    return shown


def describe_ebft(loaded: Loaded) -> list[str]:
    """`ebft train --dry-run`."""
    config, rows = loaded.recipe.training, len(loaded.train_set)
    rollouts = f"{config.samples} rollouts of {config.horizon} tokens from each anchor"
    lines = {"training sequences": f"{rows:,} of {config.context_length} tokens; {rollouts}"}
    return describe(loaded, rows, config.rows_per_step, lines)
