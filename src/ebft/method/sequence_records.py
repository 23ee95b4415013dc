"""Validation metrics from records of single sequences, and their differences between two measurements of the same.

A record holds the numbers of one sequence, as `validation.measure` finds them: its number, `log_probs` summed over its
`tokens`, means such as `cfm` over its `contexts`, and None for what is not a number. Metrics are over all tokens or all
contexts, of whichever sequence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ebft.method.metric_names import OF_ROLLOUTS
from ebft.method.ratios import Estimate, SumsAndCounts, paired_difference, ratio_of_sums

Record = dict[str, Any]

# Metric: the count that it is per.
METRICS = {
    "cross_entropy": "tokens",
    "answer_cross_entropy": "answer_tokens",
    "cfm": "contexts",
    "whitened_proxy": "contexts",
    "reward": "contexts",
}


def estimates(records: Sequence[Record]) -> dict[str, Estimate]:
    """The metrics that anything was counted for."""
    return {name: ratio_of_sums(*columns) for name, columns in sums_by_metric(records).items()}


def differences(mine: Sequence[Record], other: Sequence[Record]) -> dict[str, Estimate]:
    """`mine` minus `other`, of the metrics that both have. Nothing if these are not the same sequences."""
    mine, other = (sorted(records, key=lambda record: record["sequence"]) for records in (mine, other))
    if [(r["sequence"], r["tokens"]) for r in mine] != [(r["sequence"], r["tokens"]) for r in other]:
        return {}
    theirs = sums_by_metric(other)
    return {
        name: paired_difference(columns, theirs[name])
        for name, columns in sums_by_metric(mine).items()
        if name in theirs
    }


def as_logged(found: Mapping[str, Estimate], prefix: str = "eval") -> dict[str, float]:
    """`eval_<metric>`, and `eval_<metric>_se` beside it."""
    return {
        f"{prefix}_{name}{ending}": value
        for name, estimate in found.items()
        for ending, value in zip(("", "_se"), estimate, strict=True)
    }


def sums_by_metric(records: Sequence[Record]) -> dict[str, SumsAndCounts]:
    """What each sequence gives to each metric, of those that anything was counted for."""
    found = {}
    for metric, counted in (METRICS | {name: per for record in records for name, per in _further(record)}).items():
        counts = [record.get(counted, 0) for record in records]
        if any(counts):
            sums = [_sum(record, metric, count) for record, count in zip(records, counts, strict=True)]
            found[metric] = SumsAndCounts(sums, counts)
    return found


def _further(record: Record) -> Iterator[tuple[str, str]]:
    """Metrics that only some records have, and what they are per."""
    for name in record:
        metric = name.replace("log_probs", "cross_entropy")
        if "cross_entropy_temperature_" in metric:
            yield metric, "answer_tokens" if metric.startswith("answer_") else "tokens"
        elif name in OF_ROLLOUTS or name.startswith("cfm_temperature_"):
            yield name, "contexts"
        elif name.startswith("cfm_at_"):
            yield name, "profile_contexts"


def per_what(metric: str) -> str:
    """The count that a metric of records is per."""
    return METRICS[metric] if metric in METRICS else dict(_further({metric: None}))[metric]


def _sum(record: Record, metric: str, count: int) -> float:
    """A broken model shows: no number from a sequence that counts is NaN, not 0."""
    if count == 0:
        return 0.0
    value = record.get(metric.replace("cross_entropy", "log_probs"))
    if value is None:
        return math.nan
    return -value if "cross_entropy" in metric else value * count
