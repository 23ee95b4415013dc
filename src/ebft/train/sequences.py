"""What a recipe trains on: its data as sequences, the model, what is often not meant about them, and `--dry-run`."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any

import numpy as np

from ebft.config.recipe import Recipe
from ebft.data.packing import DocumentIndex, SequenceDataset, collate, end_token_ids, mix, pad_token_id
from ebft.data.row_format import Row, check_tokenizer, is_glued
from ebft.data.rows import LOOKED_AT, read_rows
from ebft.data.store import TokenStore, tokenize_source
from ebft.errors import ConfigError, DataError
from ebft.iteration import check_sequences, make_layout
from ebft.loading import load_model, load_tokenizer
from ebft.model.backbone import embedding_size, end_tokens_of, idle_parameters, text_config

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
    model: Any
    tokenizer: Any


def load(recipe: Recipe, needs_anchors: bool = True) -> Loaded:
    """Data, tokenizer and model. EBFT needs an anchor somewhere in the training text; baselines do not."""
    data, asked = recipe.data, recipe.training.eval_strategy
    if asked != "no" and not data.validation_split and data.validation_dataset is None:
        raise ConfigError(
            f"eval_strategy={getattr(asked, 'value', asked)} needs validation data; set validation_split or "
            "validation_dataset, or eval_strategy=no"
        )
    tokenizer = load_tokenizer(recipe)
    check_tokenizer(tokenizer)
    with recipe.training.main_process_first():  # it tokenises; the others find the tokens in the cache
        train_set, validation_set = load_data(recipe, tokenizer, needs_anchors)
    model = load_model(recipe)
    check_tokenizer(tokenizer, embedding_size(model), end_tokens_of(model))
    return Loaded(recipe, train_set, validation_set, model, tokenizer)


def load_data(
    recipe: Recipe, tokenizer: Any, needs_anchors: bool = True
) -> tuple[SequenceDataset, SequenceDataset | None]:
    """Training and validation sequences."""
    data, training = recipe.data, recipe.training
    rows = _some_rows(recipe)
    notes = _notes_on_rows(recipe, rows)

    def tokenized(source: str, split: str) -> DocumentIndex:
        store = tokenize_source(source, tokenizer, split, data.row_format, data.limit_documents)
        if recipe.command != "rlvr":  # which takes prompts, and rewards what the model answers
            notes.extend(f"{source}: {note}" for note in notes_on_answers(store, tokenizer))
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
    train_set, validation_set = sequences(index), None
    if needs_anchors:
        check_sequences(train_set, training, end_token_ids(tokenizer, training.completions_end))
        notes.append(cut_tokens(train_set, "context_length"))
    if validation is not None:
        validation_set = sequences(validation).first(data.validation_sequences)
        if len(validation_set) < FEW:
            notes.append(f"validation sequences: {len(validation_set)}; standard errors will be large")
        notes.append(also_trained_on(index, validation_set.index))
    for note in notes if training.process_index == 0 else ():
        if note is not None:
            logger.warning(note)
    return train_set, validation_set


def _some_rows(recipe: Recipe) -> list[Row]:
    data = recipe.data
    return [row for source in data.dataset for row in islice(read_rows(source, data.dataset_split), LOOKED_AT)]


def prompt_kinds(recipe: Recipe) -> list[str]:
    """How prompts are made of the rows, as some of them show it: what `ebft generate` has to know of a run."""
    return sorted({recipe.data.row_format.prompt_kind(row) for row in _some_rows(recipe)})


def _notes_on_rows(recipe: Recipe, rows: list[Row]) -> list[str | None]:
    """A column that was named and is not there is an error: a slip in its name would train on another one."""
    data, notes = recipe.data, list[str | None]()
    for kind, name in data.columns.items():
        if name != kind and not any(name in row for row in rows):
            there = ", ".join(map(repr, dict.fromkeys(column for row in rows for column in row))) or "none"
            raise DataError(f"{kind}_column={name!r} is in none of the datasets; they have the columns {there}")
    if recipe.command != "rlvr" and data.prompt_separator is None:
        standard = map(data.row_format.standard, rows)
        glued = (r for r in standard if "prompt" in r and is_glued(r["prompt"], r["completion"]))
        if (row := next(glued, None)) is not None:
            joint = f"{row['prompt'][-20:]}{row['completion'][:20]}"
            notes.append(
                f"nothing stands between prompts and answers: the model sees {joint!r}; set prompt_separator to ' ' or "
                "'\\n', or to '' if this is intended"
            )
    if recipe.training.leaves_ends_out and "short_truths" not in recipe.given:
        notes.append(ENDS_LEFT_OUT)
    return notes


def notes_on_answers(store: TokenStore, tokenizer: Any) -> list[str]:
    """On rows whose answer is missing or empty, often by a slip; an error if no row has one."""
    counts, offsets = np.asarray(store.answer_counts), np.asarray(store.offsets)
    if not counts.any():  # only a conversation can be without: text and completions end with an answer's end token
        raise DataError(
            "no row has an assistant turn; give answers the role 'assistant', or plain text in a column 'text'"
        )
    empty, known = np.zeros(len(store), bool), dict[bytes, bool]()
    for place in np.flatnonzero((counts > 0) & (counts <= LONGEST_BLANK) & (counts < store.lengths)):
        inside = slice(offsets[place], offsets[place + 1])
        answer = np.asarray(store.tokens[inside])[np.asarray(store.answers[inside]) > 0]
        if (key := answer.tobytes()) not in known:
            known[key] = not tokenizer.decode(answer.tolist(), skip_special_tokens=True).strip()
        empty[place] = known[key]
    kinds = {"without an assistant turn": counts == 0, "with an empty answer, which teaches to end at once": empty}
    return [
        f"{which.sum()} of {len(store)} rows {kind} (first: row {which.argmax() + 1})"
        for kind, which in kinds.items()
        if which.any()
    ]


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


def also_trained_on(index: DocumentIndex, validation: DocumentIndex) -> str | None:
    """Copies of training rows in the validation data: on these, a model that memorises looks like one that learns."""
    if not (seen := validation.count_also_in(index)):
        return None
    return f"{seen:,} of {len(validation):,} validation rows are also in the training data, which measures memory"


def cut_tokens(dataset: SequenceDataset, setting: str) -> str | None:
    """How much is lost where every document is a row of its own; the length of a row has the name `setting`."""
    lengths = dataset.lengths
    cut = np.maximum(lengths - dataset.context_length, 0)
    if dataset.packing or not cut.any():
        return None
    share = cut.sum() / lengths.sum()
    return f"{setting}={dataset.context_length} cuts {np.count_nonzero(cut):,} documents, {share:.1%} of all tokens"


def beyond_positions(model: Any, dataset: SequenceDataset, setting: str, apart: bool) -> str | None:
    """That sequences, or with documents apart the longest of these, are longer than the model was made for. Rotary
    positions have no end, and give no error."""
    known, longest = getattr(text_config(model), "max_position_embeddings", None), dataset.context_length
    if apart or not dataset.packing:
        longest = min(longest, int(dataset.lengths.max()))
    if not isinstance(known, int) or longest <= known:
        return None
    return (
        f"{setting}={dataset.context_length} is longer than the model was made for (max_position_embeddings={known}), "
        f"and what it computes beyond may be of little use; use {setting}<={known}"
    )


# ---- --dry-run ---------------------------------------------------------------------------------------------------


def describe(loaded: Loaded, rows: int, per_step: int, more: dict[str, str]) -> list[str]:
    """The lines that `--dry-run` prints for every method."""
    recipe, config, index = loaded.recipe, loaded.recipe.training, loaded.train_set.index
    an_epoch = math.ceil(rows / per_step)
    steps = config.max_steps if config.max_steps > 0 else math.ceil(an_epoch * config.num_train_epochs)
    parameters = sum(p.numel() for p in loaded.model.parameters())
    lines = {
        "model": f"{recipe.model.model}, {parameters:,} parameters in {recipe.model.model_dtype}",
        "documents": f"{len(index):,} with {loaded.train_set.total_tokens:,} tokens",
        **more,
        "validation sequences": "none" if loaded.validation_set is None else f"{len(loaded.validation_set):,}",
        "steps": f"{steps:,} ({an_epoch:,} an epoch)",
    }
    width = max(map(len, lines))
    shown = [f"{name:<{width}}  {value}" for name, value in lines.items()]
    store, inside = index.where(0)
    shown += ["", "The first document, as the model sees it:"]
    document = zip(store.tokens[inside].tolist(), store.answers[inside].tolist(), strict=True)
    for is_answer, part in islice(groupby(document, key=lambda token: token[1]), 8):
        text = repr(loaded.tokenizer.decode([token for token, _ in part]))
        shown.append(f"  {'answer' if is_answer else 'prompt'}  {text if len(text) <= 300 else f'{text[:300]}...'}")
    return shown


def in_a_sequence(packing: bool, document_masks: bool) -> str:
    if not packing:
        return "one document each"
    return f"filled with documents that {'do not see each other' if document_masks else 'see those before them'}"


def describe_ebft(loaded: Loaded) -> list[str]:
    """`ebft train --dry-run`."""
    config, train_set, tokenizer = loaded.recipe.training, loaded.train_set, loaded.tokenizer
    end_tokens = end_token_ids(tokenizer, config.completions_end)
    layout = make_layout(collate([train_set[0]])["on_host"], config, config.samples, end_tokens)
    in_step, packed = min(config.rows_per_step, len(train_set)), layout.packed_length
    anchors = anchors_per_sequence(train_set, config, end_tokens)
    lines = {
        "training sequences": f"{len(train_set):,} of {config.context_length} tokens, "
        f"{in_a_sequence(config.packing, config.document_masks)}",
        "anchors per sequence": f"{anchors:.1f} of at most {layout.num_anchors}, {config.samples} rollouts of "
        f"{config.horizon} tokens from each",
        "packed sequence": f"{packed:,} tokens, {packed - config.context_length:,} of them generated",
        "tokens per step": f"{in_step * packed:,} in {in_step} sequences",
        "compute per step": f"{flops_per_step(loaded.model, in_step * packed) / 1e9:,.0f} GFLOP (estimate)",
    }
    return describe(loaded, len(train_set), config.rows_per_step, lines)


def anchors_per_sequence(dataset: SequenceDataset, config: Any, end_tokens: Any, looked_at: int = 200) -> float:
    """The mean over some sequences, spread over the dataset."""
    rows = range(0, len(dataset), max(1, len(dataset) // looked_at))
    layouts = (make_layout(collate([dataset[row]])["on_host"], config, 1, end_tokens) for row in rows)
    return sum(int(layout.anchor_mask.sum()) for layout in layouts) / len(rows)


def flops_per_step(model: Any, packed_tokens: int) -> float:
    """2 per parameter that a token meets forward; rollout 1 pass, features 3/4, update 3."""
    parameters = sum(p.numel() for p in model.parameters()) - idle_parameters(model, text_config(model))
    return 2.0 * parameters * packed_tokens * (1 + 0.75 + 3)
