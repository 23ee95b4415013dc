"""Calibration: how close a model's own rollouts come to real text, in the feature space of a named frozen network.

Per sequence: cross-entropy over all and over answer tokens, at several temperatures; the unbiased conditional
feature-matching loss (CFM) and the whitened proxy at one horizon, and the CFM's profile over completion lengths. The
profile rolls out the longest length once from every anchor and looks at its prefixes, which are rollouts too, over the
same contexts: those whose truth window is whole at the longest length (paper, appendix on the profile).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from ebft.config.evaluation import EvalOptions
from ebft.config.method import MethodConfig
from ebft.data.packing import (
    DocumentIndex,
    SequenceDataset,
    collate,
    end_token_ids,
    pad_token_id,
    to_device,
    tokenize_source,
)
from ebft.data.rows import contents
from ebft.evaluate.scoring import Metric, Results, ResumableRecords
from ebft.evaluate.subject import Subject
from ebft.iteration import check_sequences, pack_to_score
from ebft.method.measures import OF_ROLLOUTS, TEMPERATURES, TOKENS, Estimate, Record, estimates, metric_at, per_what
from ebft.method.rewards import conditional_feature_matching_loss
from ebft.model.backbone import evaluating, input_embeddings
from ebft.model.features import FeatureNetwork, feature_space
from ebft.runtime.files import json_ready
from ebft.runtime.messages import progress
from ebft.validation import mean_over_contexts, measure, of_rollouts, records_of, rolled_out, text_checksum

# Options of calibration that do not change the numbers of a sequence, or are told apart in another way.
_NOT_OF_A_SEQUENCE = ("calibration_data", "calibration_split", "sequences", "feature_model", "calibration_batch_size")


def run_calibration(options: EvalOptions, subject: Subject, folder: Path) -> Results:
    """From the task's options to records on disk to numbers."""
    config, data, ends = options.method, options.data, end_token_ids(subject.tokenizer, True)
    source = options.calibration_data or "", subject.tokenizer, options.calibration_split
    store = tokenize_source(*source, data.row_format, data.limit_documents)
    documents, test = DocumentIndex.of(store).split(data.test_split, data.split_seed)
    if options.held_out:  # what a run with this validation_split validated on
        documents = documents.split(options.held_out, data.split_seed)[1]
    elif data.test_split:
        documents = test
    dataset = SequenceDataset(documents, config.context_length, config.packing, pad_token_id(subject.tokenizer))
    check_sequences(dataset, config, ends if config.completions_end else None)
    rows = range(min(len(dataset), options.sequences, options.limit or options.sequences))
    made_with = {
        "model": subject.identity,
        "features": subject.feature_source,
        "data": contents(options.calibration_data or "", options.calibration_split),
        "seed": options.seed,
        "temperatures": TEMPERATURES,
        "document_ends": None if ends is None else ends.tolist(),
        **{k: v for k, v in options.values("calibration").items() if k not in _NOT_OF_A_SEQUENCE},
    }
    records = ResumableRecords(folder, "calibration", made_with, options)
    wanted = sorted({*rows} - {record["sequence"] for record in records.rows})
    if wanted:
        size = options.calibration_batch_size
        batches = [wanted[start : start + size] for start in range(0, len(wanted), size)]
        with progress("calibration", len(rows), len(rows) - len(wanted)) as advance:
            for found in measure_sequences(subject.model, subject.features, dataset, batches, options, ends):
                records.append(found)
                advance(len(found))
    counted = [record for record in records.rows if record["sequence"] < len(rows)]
    entries = {name: _entry(name, estimate, counted) for name, estimate in estimates(counted).items()}
    points = {name for name in entries if name.startswith("cfm_at_") or "cross_entropy_temperature_" in name}
    lengths = [length for length in options.profile_lengths if f"cfm_at_{length}" in points]
    return {
        "metrics": {name: entries[name] for name in entries if name not in points | OF_ROLLOUTS.keys() | {"reward"}},
        "rollouts": {name: entries[name] for name in OF_ROLLOUTS if name in entries},
        "profile": [{"length": length, **entries[f"cfm_at_{length}"]} for length in lengths],
        "temperatures": [
            {"temperature": t, **{f"{of}cross_entropy": entries.get(metric_at(t, of)) for of in TOKENS}}
            for t in TEMPERATURES
        ],
        "sequences": len(counted),
        **{name: sum(r.get(name, 0) for r in counted) for name in ("tokens", "contexts", "profile_contexts")},
        "features": feature_space(subject.features, subject.feature_name),
        "text": text_checksum(dataset, rows),  # differences are between measurements of the same
        "notes": [],
    }


def measure_sequences(
    model: nn.Module,
    features: FeatureNetwork,
    dataset: SequenceDataset,
    batches: Iterable[Sequence[int]],
    options: EvalOptions,
    document_ends: Tensor | None,
) -> Iterator[list[Record]]:
    """A record of each sequence, for batches of rows of the dataset."""
    config, device = options.method, input_embeddings(model).device
    ends = document_ends if config.completions_end else None
    temperatures = [temperature for temperature in TEMPERATURES if temperature != 1]
    for rows in batches:
        batch = to_device(collate([dataset[row] for row in rows]), device)
        with torch.no_grad(), evaluating(model):
            found = measure(model, features, batch, config, ends, temperatures, document_ends)
            for temperature in options.also_at_temperatures:
                settings = _changed(config, temperature=temperature)
                layout, rollouts, _ = rolled_out(model, batch, settings, ends, turn=0)
                of_these = of_rollouts(features, batch["input_ids"], layout, rollouts, settings)
                found[f"cfm_temperature_{temperature:g}"] = of_these["cfm"]
            if options.profile_lengths:
                found |= profile_of(model, features, batch, options, ends)
        yield records_of(found)


def _changed(config: MethodConfig, **changes: float) -> MethodConfig:
    """Without the checks of a recipe: a profile's horizon may be longer than one would train with."""
    settings = copy.copy(config)
    vars(settings).update(changes)
    return settings


def profile_of(
    model: nn.Module, features: FeatureNetwork, batch: dict[str, Tensor], options: EvalOptions, ends: Tensor | None
) -> dict[str, Tensor]:
    """`profile_contexts` and `cfm_at_<length>` for each sequence of a batch, [b] each."""
    lengths, input_ids = options.profile_lengths, batch["input_ids"]
    config = _changed(options.method, horizon=max(lengths), stride=options.profile_stride)
    layout, rollouts, _ = rolled_out(model, batch, config, ends, turn=1)
    used = layout.anchor_mask
    if not config.short_truths:
        # Anchors at answer starts may have a shorter truth; a profile needs one that is whole at every length.
        used = used & (layout.truth_lengths == config.horizon)
    valid = used.expand(input_ids.shape[0], -1)
    packed = pack_to_score(layout, input_ids, rollouts, config)
    packed_ids = packed.pack(input_ids, rollouts.completions)
    found = {"profile_contexts": valid.sum(1)}
    at_lengths = features.at_lengths(packed_ids, packed, lengths, rollouts.lengths)
    for length, (generated, truth) in zip(lengths, at_lengths, strict=True):
        found[f"cfm_at_{length}"] = mean_over_contexts(conditional_feature_matching_loss(generated, truth), valid)
    return found


def _entry(name: str, estimate: Estimate, records: Sequence[Record]) -> Metric:
    """`count` is that of the sequences that have any of what the metric is per."""
    count = sum(bool(record.get(per_what(name))) for record in records)
    return json_ready({"value": estimate.mean, "standard_error": estimate.standard_error, "count": count})
