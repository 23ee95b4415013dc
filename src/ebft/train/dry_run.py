"""`--dry-run`: what a run would do, and one decoded example with its anchors."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from itertools import groupby
from typing import Any

import torch

from ebft.config.recipe import Recipe
from ebft.data.packing import SequenceDataset, collate, end_token_ids
from ebft.iteration import make_layout
from ebft.model.backbone import idle_parameters, text_config
from ebft.train.advice import only_warm_up
from ebft.train.samples import CONTEXT_TOKENS, earlier
from ebft.train.sequences import beyond_positions

logger = logging.getLogger(__name__)


def describe(
    recipe: Recipe, train_set: SequenceDataset, validation_set: SequenceDataset | None, model: Any, tokenizer: Any
) -> list[str]:
    """The lines that `--dry-run` prints."""
    config = recipe.training
    end_tokens = end_token_ids(tokenizer, config.completions_end)
    layout = make_layout(collate([train_set[0]])["on_host"], config, config.samples, end_tokens)
    per_step = config.rows_per_step
    steps_per_epoch, in_step = math.ceil(len(train_set) / per_step), min(per_step, len(train_set))
    parameters = sum(p.numel() for p in model.parameters())
    active = parameters - idle_parameters(model, text_config(model))
    packed = layout.packed_length
    anchors = anchors_per_sequence(train_set, config, end_tokens)
    for warning in (
        beyond_positions(model, train_set, config),
        short_texts(train_set, config) if anchors < layout.num_anchors / 2 else None,
    ):
        if warning is not None:
            logger.warning(warning)
    lines = {
        "model": f"{recipe.model.model}, {parameters:,} parameters in {recipe.model.model_dtype}",
        "documents": f"{len(train_set.index):,} with {train_set.total_tokens:,} tokens",
        "training sequences": f"{len(train_set):,} of {config.context_length} tokens, "
        f"{in_a_sequence(config.packing, config.document_masks)}",
        "validation sequences": f"{len(validation_set):,}" if validation_set is not None else "none",
        "anchors per sequence": f"{anchors:.1f} of at most "
        f"{layout.num_anchors}, {config.samples} rollouts of {config.horizon} tokens from each",
        "packed sequence": f"{packed:,} tokens, {packed - config.context_length:,} of them generated",
        "tokens per step": f"{in_step * packed:,} in {in_step} sequences",
        "steps": f"{steps_of(config, steps_per_epoch):,} ({steps_per_epoch:,} an epoch)",
        "objective": _objective(recipe),
        "compute per step": f"{flops_per_step(active, in_step, packed) / 1e9:,.0f} GFLOP (estimate)",
    }
    shown = [*columns(lines), "", *first_document(train_set, tokenizer)]
    shown += ["", "One sequence, with some of its anchors (| marks where rollouts begin):"]
    row = collate([train_set[0]])
    valid = torch.atleast_2d(layout.anchor_mask)[0].nonzero().flatten().tolist()
    anchors, truths = torch.atleast_2d(layout.anchors)[0], torch.atleast_2d(layout.truth_lengths)[0]
    for place in valid[:: max(1, len(valid) // 3)][:3]:
        a = int(anchors[place])
        before = tokenizer.decode(row["input_ids"][0, max(0, a - CONTEXT_TOKENS) : a].tolist())
        after = tokenizer.decode(row["input_ids"][0, a : a + int(truths[place])].tolist())
        shown.append(f"  token {a}: {earlier(a)}{before!r} | {after!r}")
    return shown if valid else [*shown, "  (no anchor in this sequence)"]


def in_a_sequence(packing: bool, document_masks: bool) -> str:
    if not packing:
        return "one document each"
    if document_masks:
        return "filled with documents that do not see each other"
    return "filled with documents that see those before them (document_masks: true keeps them apart)"


def _objective(recipe: Recipe) -> str:
    config = recipe.training
    said = f"whitening {config.whitening}, gamma {config.gamma:g}, learning rate {config.learning_rate:g}"
    if {"learning_rate", "gamma", "whitening"} & set(recipe.given):
        return said
    return f"{said}: the paper's, for long runs of large models; with little text, start from --config little-data"


def steps_of(config: Any, an_epoch: int) -> int:
    """Steps of the run, from those of an epoch; says so if all of them are warm-up."""
    steps = config.max_steps if config.max_steps > 0 else math.ceil(an_epoch * config.num_train_epochs)
    if (words := only_warm_up(config, steps)) is not None:
        logger.warning(words)
    return steps


def first_document(train_set: SequenceDataset, tokenizer: Any) -> list[str]:
    """What the model sees of a document, prompts and answers apart."""
    store, inside = train_set.index.where(0)
    shown = ["The first document, as the model sees it:"]
    document = zip(store.tokens[inside].tolist(), store.answers[inside].tolist(), strict=True)
    for is_answer, part in groupby(document, key=lambda token: token[1]):
        text = repr(tokenizer.decode([token for token, _ in part]))
        shown.append(f"  {'answer' if is_answer else 'prompt'}  {text if len(text) <= 300 else f'{text[:300]}...'}")
    return shown[:9]


def columns(lines: Mapping[str, str]) -> list[str]:
    """Names and values, one below the other."""
    width = max(map(len, lines))
    return [f"{name:<{width}}  {value}" for name, value in lines.items()]


def anchors_per_sequence(
    dataset: SequenceDataset, config: Any, end_tokens: torch.Tensor | None, looked_at: int = 200
) -> float:
    """The mean over some sequences, spread over the dataset."""
    rows = range(0, len(dataset), max(1, len(dataset) // looked_at))
    layouts = (make_layout(collate([dataset[row]])["on_host"], config, 1, end_tokens) for row in rows)
    return sum(int(layout.anchor_mask.sum()) for layout in layouts) / len(rows)


def short_texts(dataset: SequenceDataset, config: Any) -> str | None:
    """That most documents, or answers, have no anchor because they are shorter than a rollout."""
    if config.anchors != "strided" or not (config.answer_only or config.document_masks or not config.packing):
        return None
    if config.short_truths:  # shorter ones have their anchors too
        return None
    what, lengths = ("answers", dataset.index.answer_counts) if config.answer_only else ("documents", dataset.lengths)
    needed = config.horizon if config.answer_only else config.horizon + 1  # a document has the context as well
    short = int((lengths < needed).sum())
    if short < len(lengths) / 2:
        return None
    way_out = ", or short_truths=true" if config.leaves_ends_out else ""
    return (
        f"most anchors are dropped: {short:,} of {len(lengths):,} {what} have fewer than {needed} tokens, and no "
        f"rollout of horizon={config.horizon} tokens begins in them; use a smaller horizon{way_out}"
    )


def flops_per_step(parameters: int, sequences: int, packed_tokens: int) -> float:
    """2 per parameter that a token meets forward; rollout 1 pass, features 3/4, update 3."""
    return 2.0 * parameters * sequences * packed_tokens * (1 + 0.75 + 3)
