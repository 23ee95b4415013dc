"""The task `calibration` of `ebft eval`: from its options to records on disk to numbers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from ebft.config.evaluation import ONLY_IF_SET, EvalOptions
from ebft.data.packing import DocumentIndex, SequenceDataset, end_token_ids, pad_token_id
from ebft.data.rows import contents
from ebft.data.store import tokenize_source
from ebft.errors import ConfigError, DataError
from ebft.iteration import check_sequences
from ebft.method.measures import OF_ROLLOUTS, Estimate, Record, per_what
from ebft.model.features import feature_space
from ebft.runtime.messages import progress
from ebft.tasks import calibration
from ebft.tasks.problem_set import Scored
from ebft.tasks.resumable_records import ResumableRecords
from ebft.tasks.subject import Subject
from ebft.tasks.temperatures import TEMPERATURES, TOKENS, best, metric_at
from ebft.validation import text_checksum

ENDS_NOT_MEASURED = (
    "anchors from which a text ends within a rollout are left out, so the feature-matching loss favours models that do "
    "not end; measure with --short-truths"
)
BEYOND_THE_GRID = (
    f"the best temperature is at an edge of those measured, {TEMPERATURES[0]:g} to {TEMPERATURES[-1]:g}; the least "
    "cross-entropy may lie beyond"
)


def run_calibration(options: EvalOptions, subject: Subject, folder: Path) -> Scored:
    config, profile = options.method, options.profile
    documents = calibration_documents(options, subject.tokenizer)
    dataset = SequenceDataset(documents, config.context_length, config.packing, pad_token_id(subject.tokenizer))
    document_ends = end_token_ids(subject.tokenizer, True)
    end_tokens = document_ends if config.completions_end else None
    check_sequences(dataset, config, end_tokens)
    rows = range(min(len(dataset), options.sequences, options.limit or options.sequences))
    made_with = {
        "model": subject.identity,
        "features": subject.feature_source,
        "data": contents(options.calibration_data or "", options.calibration_split),
        "seed": options.seed,
        "temperatures": TEMPERATURES,
        "document_ends": None if document_ends is None else document_ends.tolist(),
        **{k: v for k, v in calibration_settings(options).items() if k not in _NOT_OF_A_SEQUENCE},
    }
    records = ResumableRecords(folder, "calibration", made_with, options.overwrite, options.replace_changed)
    made = {row["sequence"] for row in records.rows}
    wanted = [row for row in rows if row not in made]
    features = feature_space(subject.features, subject.feature_name)
    if wanted:
        with progress("calibration", len(rows), len(rows) - len(wanted)) as advance:
            batches = [
                wanted[start : start + options.calibration_batch_size]
                for start in range(0, len(wanted), options.calibration_batch_size)
            ]
            for batch in calibration.measure_sequences(
                subject.model,
                subject.features,
                dataset,
                batches,
                config,
                profile,
                end_tokens,
                options.also_at_temperatures,
                document_ends,
            ):
                records.append(batch)
                advance(len(batch))
    counted = [record for record in records.rows if record["sequence"] < len(rows)]
    metrics, points = calibration.estimates(counted)
    entries = {name: _entry(estimate, counted, _per(name)) for name, estimate in {**metrics, **points}.items()}
    at_edge = [tokens for of, tokens in TOKENS.items() if (least := best(counted, of)) is not None and least.at_edge]
    return {
        "metrics": {name: entries[name] for name in metrics if name not in OF_ROLLOUTS},
        "rollouts": {name: entries[name] for name in metrics if name in OF_ROLLOUTS},
        "profile": [{"length": g, **entries[name]} for g in profile.lengths if (name := f"cfm_at_{g}") in points],
        "temperatures": [
            {"temperature": t, **{f"{of}cross_entropy": entries.get(metric_at(t, of)) for of in TOKENS}}
            for t in TEMPERATURES
        ],
        "sequences": len(counted),
        "tokens": int(sum(record["tokens"] for record in counted)),
        "contexts": int(sum(record["contexts"] for record in counted)),
        "profile_contexts": int(sum(record.get("profile_contexts", 0) for record in counted)),
        "features": features,
        "text": text_checksum(dataset, rows),  # differences are between measurements of the same
        "notes": [
            *([ENDS_NOT_MEASURED] if config.leaves_ends_out else []),
            *(f"cross-entropy, {tokens}: {BEYOND_THE_GRID}" for tokens in at_edge),
        ],
    }


def calibration_settings(options: EvalOptions) -> dict[str, Any]:
    """Its options, without newer ones that are not set: results from before there were any stay comparable."""
    found = options.values("calibration")
    return {name: value for name, value in found.items() if name not in ONLY_IF_SET or value}


# Options of calibration that do not change the numbers of a sequence, or are told apart in another way.
_NOT_OF_A_SEQUENCE = ("calibration_data", "calibration_split", "sequences", "feature_model", "calibration_batch_size")


def calibration_documents(options: EvalOptions, tokenizer: Any) -> DocumentIndex:
    assert options.calibration_data is not None
    data = options.data
    store = tokenize_source(
        options.calibration_data, tokenizer, options.calibration_split, data.row_format, data.limit_documents
    )
    rest, test = DocumentIndex.of(store).without_test(data.test_split, data.split_seed)
    if options.held_out:  # what a run with this validation_split validated on
        try:
            return rest.split(options.held_out, data.split_seed)[1]
        except DataError:
            raise ConfigError(
                f"--held-out {options.held_out:g} is all of the {len(rest)} documents of {options.calibration_data}; "
                "give the validation_split of the run: a share below 1, or a smaller number"
            ) from None
    return rest if test is None else test


def _per(metric: str) -> str:
    """The count that a metric is per."""
    return {f"{of}best_temperature": f"{of}tokens" for of in TOKENS}.get(metric) or per_what(metric)


def _entry(estimate: Estimate, records: list[Record], per: str) -> dict[str, Any]:
    """`count` is that of the sequences that have any of what the metric is per."""
    count = sum(bool(record.get(per)) for record in records)
    value, error = (x if math.isfinite(x) else None for x in estimate)  # JSON has no NaN
    return {"value": value, "standard_error": error, "count": count}
