"""The task `calibration` of `ebft eval`: from its options to records on disk to numbers."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path
from typing import Any

from ebft.config.evaluation import EvalOptions
from ebft.config.training import EBFTConfig, check_method
from ebft.data.packing import DocumentIndex, SequenceDataset
from ebft.data.rows import fingerprint as source_fingerprint
from ebft.data.store import tokenize_source
from ebft.method.metrics import Estimate
from ebft.tasks import calibration
from ebft.tasks.problem_set import Scored
from ebft.tasks.progress import progress
from ebft.tasks.resumable_records import ResumableRecords
from ebft.tasks.subject import Subject, space


def run_calibration(options: EvalOptions, subject: Subject, folder: Path) -> Scored:
    from ebft.train.sequences import check_sequences, end_token_ids, pad_token_id

    config, profile = calibration_settings(options)
    dataset = SequenceDataset(
        calibration_documents(options, subject.tokenizer),
        options.context_length,
        options.packing,
        pad_token_id(subject.tokenizer),
    )
    check_sequences(dataset, config)
    rows = range(min(len(dataset), options.sequences, options.limit or options.sequences))
    made_with = {
        "model": subject.identity,
        "features": subject.feature_source,
        "data": source_fingerprint(options.calibration_data or "", options.calibration_split),
        **{name: getattr(options, name) for name in (*_MEASURED_WITH, *_MADE_OF)},
    }
    records = ResumableRecords(folder, "calibration", made_with, options.overwrite)
    made = {row["sequence"] for row in records.rows}
    wanted = [row for row in rows if row not in made]
    end_tokens = end_token_ids(subject.tokenizer, options.document_masks)
    features = space(subject)
    if wanted:
        with progress("calibration", len(rows), len(rows) - len(wanted)) as advance:
            for batch in calibration.measure_sequences(
                subject.model, subject.features, dataset, wanted, config, profile, end_tokens
            ):
                records.append(batch)
                advance(len(batch))
    counted = [record for record in records.rows if record["sequence"] < len(rows)]
    metrics, points = calibration.estimates(counted, profile.lengths)
    return {
        "metrics": {name: _entry(estimate, len(counted)) for name, estimate in metrics.items()},
        "profile": [{"length": length, **_entry(estimate, len(counted))} for length, estimate in points],
        "sequences": len(counted),
        "tokens": int(sum(record["tokens"] for record in counted)),
        "contexts": int(sum(record["contexts"] for record in counted)),
        "profile_contexts": int(sum(record.get("profile_contexts", 0) for record in counted)),
        "features": features,
    }


# What the numbers of a sequence depend on, beside model, feature network and data.
_MEASURED_WITH = """seed context_length packing horizon stride rollouts rollout_temperature anchors answer_only
    document_masks whitening feature_layers feature_pooling feature_normalize profile_lengths profile_stride""".split()  # noqa: SIM905
_MADE_OF = """held_out split_seed limit_documents text_column prompt_column completion_column
    messages_column""".split()  # noqa: SIM905


def calibration_settings(options: EvalOptions) -> tuple[EBFTConfig, calibration.Profile]:
    # Not `EBFTConfig(...)`: transformers would set up devices and processes, in training a second time. Measuring
    # needs the method's settings only.
    config = object.__new__(EBFTConfig)
    for f in fields(EBFTConfig):
        default = f.default_factory() if callable(f.default_factory) else f.default
        object.__setattr__(config, f.name, default)
    chosen = {name: getattr(options, name) for name in _MEASURED_WITH if hasattr(config, name)}
    for name, value in (chosen | {"samples": options.rollouts, "temperature": options.rollout_temperature}).items():
        object.__setattr__(config, name, value)
    config.per_device_eval_batch_size, config.eval_seed = options.calibration_batch_size, options.seed
    check_method(config)
    profile = calibration.Profile(tuple(sorted(options.profile_lengths)), options.profile_stride)
    profile.check(options.context_length)
    return config, profile


def calibration_documents(options: EvalOptions, tokenizer: Any) -> DocumentIndex:
    assert options.calibration_data is not None
    columns = {name: getattr(options, f"{name}_column") for name in ("text", "prompt", "completion", "messages")}
    store = tokenize_source(
        options.calibration_data, tokenizer, options.calibration_split, columns, options.limit_documents
    )
    index = DocumentIndex.of(store)
    return index.split(options.held_out, options.split_seed)[1] if options.held_out else index


def _entry(estimate: Estimate, count: int) -> dict[str, Any]:
    value, error = (x if math.isfinite(x) else None for x in map(float, estimate))  # JSON has no NaN
    return {"value": value, "standard_error": error, "count": count}
