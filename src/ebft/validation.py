"""Validation: what cross-entropy, feature-matching loss and whitened proxy are of each sequence.

The same measurement for EBFT, for the baselines and for `ebft eval`; `method.measures` makes metrics of it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from itertools import product

import torch
from torch import Tensor, nn

from ebft.config.method import MethodConfig, settings_that_change
from ebft.config.training import EBFTConfig
from ebft.data.packing import PADDING, Batch, SequenceDataset, to_device
from ebft.iteration import Rollouts, distinct_share, make_layout, pack_to_score, roll_out, score
from ebft.method.cross_entropy import log_probs_at_temperatures
from ebft.method.layout import PackedLayout
from ebft.method.losses import counted_tokens
from ebft.method.measures import OF_ROLLOUTS, Record
from ebft.method.rewards import whitened_proxy
from ebft.method.sampling import sequence_seeds
from ebft.model.backbone import evaluating, output_head
from ebft.model.features import FeatureNetwork, weight_fingerprint
from ebft.runtime.files import Json, json_ready
from ebft.runtime.messages import progress
from ebft.runtime.processes import count, join_rows, rank


@torch.no_grad()
def measure(
    model: nn.Module,
    features: FeatureNetwork,
    batch: Batch,
    config: MethodConfig,
    end_token_ids: Tensor | None,
    temperatures: Sequence[float] = (),
    document_ends: Tensor | None = None,
) -> dict[str, Tensor]:
    """What each sequence of a batch contributes, [b] each: its number, sums and counts of its tokens' log-probs, and
    means over its contexts, NaN without any. document_ends: tokens that a further sum over answers leaves out."""
    ids, documents = batch["input_ids"], batch["document_ids"]
    layout, rollouts, context = rolled_out(model, batch, config, end_token_ids, turn=0)
    # Of every token but the first, which nothing predicts: [b, T - 1, temperatures].
    rows, targets = context[:, :-1].flatten(0, 1), ids[:, 1:].flatten()
    log_probs = log_probs_at_temperatures(rows, output_head(model), targets, (1.0, *temperatures))
    log_probs = log_probs.unflatten(0, (len(ids), -1)).double()
    real = documents[:, 1:] != PADDING
    if config.document_masks:  # nor does anything predict the first of a document
        real &= documents[:, 1:] == documents[:, :-1]
    of_answers = real & batch["answer_mask"][:, 1:]

    def sums(counted: Tensor) -> Tensor:
        return torch.where(counted[..., None], log_probs, 0.0).sum(1)

    found = {"sequence": batch["sequence_id"]}
    for name, counted in ("", real), ("answer_", of_answers):
        first, *further = sums(counted).unbind(1)
        found[f"{name}log_probs"], found[f"{name}tokens"] = first, counted.sum(1)
        found |= {f"{name}log_probs_temperature_{t:g}": s for t, s in zip(temperatures, further, strict=True)}
    if document_ends is not None:
        counted = of_answers & ~torch.isin(ids[:, 1:], document_ends.to(ids.device))
        found["answer_log_probs_without_end"], found["answer_tokens_without_end"] = sums(counted)[:, 0], counted.sum(1)
    found["contexts"] = layout.anchor_mask.expand(len(ids), -1).sum(1)
    return found | of_rollouts(features, ids, layout, rollouts, config)


def rolled_out(
    model: nn.Module, batch: Batch, config: MethodConfig, end_token_ids: Tensor | None, turn: int
) -> tuple[PackedLayout, Rollouts, Tensor]:
    """A batch's layout, rollouts, and the hidden states of its text. turn: other random numbers for each."""
    ids, samples = batch["input_ids"], config.eval_samples or config.samples
    layout = make_layout(batch["on_host"], config, samples, end_token_ids, ids.device.type == "cuda").to(ids.device)
    seeds = sequence_seeds(config.eval_seed, turn, batch["sequence_id"])
    return layout, *roll_out(model, ids, layout, seeds, config, end_token_ids)


def of_rollouts(
    features: FeatureNetwork, input_ids: Tensor, layout: PackedLayout, rollouts: Rollouts, config: MethodConfig
) -> dict[str, Tensor]:
    """Means over the contexts of each sequence, [b] each, of what the rollouts are like."""
    rows = input_ids.shape[0]
    scores = score(features, input_ids, pack_to_score(layout, input_ids, rollouts, config), rollouts, config)
    assert scores.cfm is not None  # the settings ask for at least two samples
    counted = counted_tokens(layout, rows, rollouts.lengths)
    entropies = torch.where(counted, rollouts.entropy.double(), 0.0).sum((-2, -1))
    per_context = {
        "cfm": scores.cfm,
        "whitened_proxy": whitened_proxy(scores.alignment, scores.diversity),
        "reward": (scores.alignment - config.alpha * scores.diversity).mean(-1),
        "distinct": distinct_share(rollouts.groups),
        "entropy": entropies / counted.sum((-2, -1)).clamp(min=1),
    }
    valid = layout.anchor_mask.expand(rows, -1)
    return {name: mean_over_contexts(values, valid) for name, values in per_context.items()}


def mean_over_contexts(values: Tensor, valid: Tensor) -> Tensor:
    """Means over the valid contexts of each sequence: [b, B] -> [b], NaN where there is none."""
    return torch.where(valid, values.double(), 0.0).sum(1) / valid.sum(1)


def records_of(found: dict[str, Tensor]) -> list[Record]:
    """What `measure` found as a dictionary for each sequence. What is not a number is None, which JSON can hold."""
    rows = zip(*(values.tolist() for values in found.values()), strict=True)
    return [json_ready(dict(zip(found, row, strict=True))) for row in rows]


@torch.no_grad()
def validate(
    model: nn.Module,
    features: FeatureNetwork,
    batches: Iterable[Batch],
    config: MethodConfig,
    end_token_ids: Tensor | None,
    device: torch.device,
    rows: int,
) -> list[Record]:
    """A record of each of the `rows` sequences, the same in all processes, of which each looks at its share."""
    parts: list[dict[str, Tensor]] = []
    share = -(-rows // count())
    shown = progress("held-out sequences", share) if rank() == 0 else nullcontext(lambda made: None)
    with evaluating(model), shown as advance:
        for batch in batches:
            found = measure(model, features, to_device(batch, device), config, end_token_ids)
            parts.append({name: values.cpu() for name, values in found.items() if name not in OF_ROLLOUTS})
            advance(len(batch["input_ids"]))
    joined = join_rows({name: torch.cat([part[name] for part in parts]) for name in parts[0]}, device)
    return records_of({name: values[:rows] for name, values in joined.items()})


def text_checksum(dataset: SequenceDataset, rows: Iterable[int]) -> str:
    """The same for the same sequences."""
    found = 0
    for row, name in product(rows, ("input_ids", "document_ids", "answer_mask")):
        found = zlib.crc32(dataset[row][name].numpy().tobytes(), found)
    return f"{found:08x}"


def identity(config: EBFTConfig, features: FeatureNetwork, dataset: SequenceDataset) -> Json:
    """What the validation numbers of a run depend on, beside the model; `ebft compare` looks at it."""
    settings = {name: getattr(config, name) for name in settings_that_change("text", "features", "proxy")}
    settings["eval_samples"] = settings["eval_samples"] or settings["samples"]
    if not settings["short_truths"]:
        del settings["short_truths"]  # it is younger than many runs, with which others compare
    return {
        **settings,
        "network": "moving average" if features.source == "average" else weight_fingerprint(features.decoder),
        "validation": text_checksum(dataset, range(len(dataset))),
        "validation_sequences": len(dataset),
        "bf16": bool(config.bf16),
        "means_over": "contexts",  # they were over sequences once: such losses do not compare with these
    }
