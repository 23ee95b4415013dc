"""What a recipe trains on: its data as sequences, the model, what is often not meant about them."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby, islice

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ebft.config.data import DataConfig
from ebft.config.recipe import Recipe
from ebft.data import packing
from ebft.data.packing import DocumentIndex, SequenceDataset, TokenStore
from ebft.data.row_format import Row, check_tokenizer, is_glued
from ebft.data.rows import LOOKED_AT, read_rows
from ebft.errors import DataError
from ebft.iteration import check_sequences
from ebft.loading import load_model, load_tokenizer
from ebft.model.backbone import input_embeddings, text_config
from ebft.runtime import processes

logger = logging.getLogger(__name__)

ENDS_LEFT_OUT = (
    "anchors from which a text ends within a rollout are left out, so feature matching teaches the model not to end; "
    "set short_truths=true, or short_truths=false if this is intended"
)
LONGEST_BLANK = 8  # tokens of an answer that is looked at for being whitespace, its end token among them


@dataclass(frozen=True)
class Loaded:
    """What a run begins with."""

    recipe: Recipe
    train_set: SequenceDataset
    validation_set: SequenceDataset | None
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


def load(recipe: Recipe) -> Loaded:
    """Data, tokenizer and model. EBFT needs an anchor somewhere in the training text."""
    training, tokenizer, needs_anchors = recipe.training, load_tokenizer(recipe), recipe.command == "train"
    check_tokenizer(tokenizer)
    with training.main_process_first():  # it tokenises; the others find the tokens in the cache
        train_set, validation_set = load_data(recipe, tokenizer)
    if needs_anchors:
        check_sequences(train_set, training, packing.end_token_ids(tokenizer, training.completions_end))
    model = load_model(recipe)
    check_tokenizer(tokenizer, len(input_embeddings(model)))
    if needs_anchors:
        look_at_lengths(model, train_set, "context_length", training.document_masks)
    return Loaded(recipe, train_set, validation_set, model, tokenizer)


def load_data(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> tuple[SequenceDataset, SequenceDataset | None]:
    """Training and validation sequences."""
    data, training = recipe.data, recipe.training
    _look_at_rows(recipe)

    def tokenized(source: str, split: str) -> DocumentIndex:
        store = packing.tokenize_source(source, tokenizer, split, data.row_format, data.limit_documents)
        if recipe.command != "rlvr":  # which takes prompts, and rewards what the model answers
            look_at_answers(store, tokenizer, f"{source}: ")
        return DocumentIndex.of(store)

    def sequences(index: DocumentIndex) -> SequenceDataset:
        return SequenceDataset(index, training.context_length, training.packing, packing.pad_token_id(tokenizer))

    indices = [tokenized(source, data.dataset_split) for source in data.dataset]
    index = indices[0]
    if len(indices) > 1:
        index = packing.mix(indices, data.dataset_weights or [len(i) for i in indices], data.split_seed)
    index, _ = index.split(data.test_split, data.split_seed)  # what is for testing only
    if data.validation_dataset is not None:
        validation = tokenized(data.validation_dataset, data.validation_dataset_split)
    elif not data.validation_split:
        return sequences(index), None
    elif len(index) < 2:
        raise DataError("one document cannot be split; set validation_split=0 or give a validation_dataset")
    else:
        index, validation = index.split(data.validation_split, data.split_seed)
    validation_set = sequences(validation).first(data.validation_sequences)
    if len(validation_set) < 20:
        warn(f"validation sequences: {len(validation_set)}; standard errors will be large")
    look_at_copies(index, validation_set.index)
    return sequences(index), validation_set


def warn(note: str) -> None:
    if processes.rank() == 0:
        logger.warning(note)


def _some_rows(data: DataConfig) -> list[Row]:
    return [row for source in data.dataset for row in islice(read_rows(source, data.dataset_split), LOOKED_AT)]


def prompt_kinds(data: DataConfig) -> list[str]:
    """How prompts are made of the rows, as some of them show it: what `ebft generate` has to know of a run."""
    return sorted({data.row_format.prompt_kind(row) for row in _some_rows(data)})


def _look_at_rows(recipe: Recipe) -> None:
    """A column that was named and is not there is an error: a slip in its name would train on another one."""
    data, rows = recipe.data, _some_rows(recipe.data)
    for kind, name in data.columns.items():
        if name != kind and not any(name in row for row in rows):
            there = ", ".join(map(repr, dict.fromkeys(column for row in rows for column in row))) or "none"
            raise DataError(f"{kind}_column={name!r} is in none of the datasets; they have the columns {there}")
    with suppress(DataError):  # of a row without the right columns: it is named when rows are tokenised
        standard = map(data.row_format.standard, rows if data.prompt_separator is None else ())
        glued = (r for r in standard if "prompt" in r and is_glued(r["prompt"], r["completion"]))
        if recipe.command != "rlvr" and (row := next(glued, None)):
            joint = f"{row['prompt'][-20:]}{row['completion'][:20]}"
            ways_out = r"set prompt_separator to ' ' or '\n', or to '' if this is intended"
            warn(f"nothing stands between prompts and answers: the model sees {joint!r}; {ways_out}")
    if recipe.training.leaves_ends_out and "short_truths" not in recipe.given:
        warn(ENDS_LEFT_OUT)


def look_at_answers(store: TokenStore, tokenizer: PreTrainedTokenizerBase, where: str = "") -> None:
    """Rows whose answer is missing or empty, often by a slip; an error if no row has one."""
    counts = np.asarray(store.answer_counts)
    if not counts.any():  # only a conversation can be without: text and completions end with an answer's end token
        raise DataError("no row has an assistant turn; give answers the role 'assistant', or text in a column 'text'")

    short = np.flatnonzero((counts <= LONGEST_BLANK) & (counts < store.lengths)).tolist()
    insides = [slice(store.offsets[row], store.offsets[row + 1]) for row in short]
    answers = (store.tokens[inside][store.answers[inside] > 0].tolist() for inside in insides)
    texts = [str(tokenizer.decode(answer, skip_special_tokens=True)) for answer in answers]
    if empty := [row + 1 for row, text in zip(short, texts, strict=True) if not text.strip()]:
        warn(f"{where}{len(empty)} of {len(store)} rows have no answer, or an empty one (first: row {empty[0]})")


def look_at_copies(index: DocumentIndex, validation: DocumentIndex) -> None:
    """Copies of training rows in the validation data: on these, a model that memorises looks like one that learns."""
    if seen := validation.count_also_in(index):
        warn(f"{seen:,} of {len(validation):,} validation rows are also in the training data, which measures memory")


def look_at_lengths(model: PreTrainedModel, dataset: SequenceDataset, setting: str, apart: bool) -> None:
    """How much is cut where every document is a row of its own, and whether sequences, or with documents apart the
    longest of these, are longer than the model was made for: rotary positions have no end, and give no error. The
    length of a row has the name `setting`."""
    length = dataset.context_length
    cut = np.maximum(dataset.lengths - length, 0)
    if not dataset.packing and cut.any():
        share = cut.sum() / dataset.lengths.sum()
        warn(f"{setting}={length} cuts {np.count_nonzero(cut):,} documents, {share:.1%} of all tokens")
    known = getattr(text_config(model), "max_position_embeddings", None)
    longest = min(length, int(dataset.lengths.max())) if apart or not dataset.packing else length
    if known is not None and longest > known:
        warn(f"{setting}={length} is longer than the model was made for; use {setting}<={known}")


def trained_part(recipe: Recipe, index: DocumentIndex) -> str:
    """What of the documents is trained on, in words: the first line of a run."""
    if recipe.command == "rlvr":
        return f"the prompts of {len(index):,} documents"
    only_answers = getattr(recipe.training, "trains_on_answers", recipe.training.answer_only)  # SFT has its own word
    counted = index.answer_counts if only_answers else index.lengths
    return f"{int(counted.sum()):,} of the {int(index.lengths.sum()):,} tokens of {len(index):,} documents"


def first_document(loaded: Loaded) -> list[str]:
    store, inside = loaded.train_set.index.where(0)
    document = zip(store.tokens[inside].tolist(), store.answers[inside].tolist(), strict=True)
    shown = []
    for is_answer, part in islice(groupby(document, key=lambda token: token[1]), 8):
        text = repr(loaded.tokenizer.decode([token for token, _ in part]))
        shown.append(f"  {'answer' if is_answer else 'prompt'}  {text if len(text) <= 300 else f'{text[:300]}...'}")
    return shown
