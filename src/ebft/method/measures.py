"""Metrics: ratios of sums over sequences with standard errors, records of sequences, and the names of metrics.

Each sequence gives a sum and a count (of its tokens, of its contexts); the metric is one total divided by the other, so
that every token or context weighs the same. Sequences are independent of each other and what is inside them is not:
standard errors are over sequences, by the delta method. Nothing here imports torch: `ebft compare` need not wait.

A record holds the numbers of one sequence, as `validation.measure` finds them: its number, `log_probs` summed over its
`tokens`, means such as `cfm` over its `contexts`, and None for what is not a number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple


class Estimate(NamedTuple):
    mean: float
    standard_error: float  # NaN for fewer than two observations


class SumsAndCounts(NamedTuple):
    """What each sequence gives."""

    sums: Sequence[float]
    counts: Sequence[float]


def ratio_of_sums(sums: Sequence[float], counts: Sequence[float]) -> Estimate:
    """The total of `sums` divided by that of `counts`. A sequence that counts nothing is no observation."""
    observed = [place for place, count in enumerate(counts) if count]
    ratio, influences = linearized(SumsAndCounts(sums, counts), observed)
    return Estimate(ratio, standard_error(influences))


def paired_difference(mine: SumsAndCounts, other: SumsAndCounts) -> Estimate:
    """`mine` minus `other`: two ratios of sums over the same sequences, in the same order.

    What makes a sequence hard for both cancels, so the standard error is often much smaller than those of the two.
    """
    observed = [place for place, pair in enumerate(zip(mine.counts, other.counts, strict=True)) if any(pair)]
    my_ratio, my_influences = linearized(mine, observed)
    other_ratio, other_influences = linearized(other, observed)
    moved = [a - b for a, b in zip(my_influences, other_influences, strict=True)]
    return Estimate(my_ratio - other_ratio, standard_error(moved))


def linearized(given: SumsAndCounts, observed: Sequence[int]) -> tuple[float, list[float]]:
    """The ratio, and how each sequence pulls at it: to first order the ratio errs by the mean of these pulls, which
    add up to zero."""
    sums, counts = ([column[place] for place in observed] for column in given)
    total = math.fsum(counts)
    ratio = math.fsum(sums) / total
    mean_count = total / len(counts)
    return ratio, [(s - ratio * count) / mean_count for s, count in zip(sums, counts, strict=True)]


def standard_error(influences: Sequence[float]) -> float:
    """Of a mean of independent values, given by their differences from it."""
    m = len(influences)
    return math.sqrt(math.fsum(i * i for i in influences) / (m - 1) / m) if m > 1 else math.nan


def with_error(value: float | None, error: float | None, sign: Literal["", "+"] = "") -> str:
    """A value and its standard error, which one sequence alone does not have. Differences show their sign: "+".

    Four decimals, or more where the error would be rounded to nothing: `+0.00012 ± 0.00003`. A difference that is 0 on
    every sequence is `0`: nothing changed.
    """
    if value is None:
        return ""
    if sign and value == 0 and error == 0:
        return "0"
    if error is None or math.isnan(error):
        return f"{value:{sign}.4f}"
    if error <= 1e-9 * abs(value):  # nothing, but for rounding
        return f"{value:{sign}.4f} ± 0"
    digits = 4 if error >= 0.00005 else min(9, -math.floor(math.log10(error)))
    return f"{value:{sign}.{digits}f} ± {error:.{digits}f}"


NAMES = {
    "cross_entropy": "cross-entropy, all tokens",
    "answer_cross_entropy": "cross-entropy, answer tokens",
    "cfm": "feature-matching loss",
    "whitened_proxy": "whitened proxy (larger is better)",
}
METRICS = (*NAMES, "reward")
# What rollouts are like: measured in evaluation alone, and neither larger nor smaller is better.
OF_ROLLOUTS = {"distinct": "distinct rollouts", "entropy": "entropy of rollouts"}
# Cross-entropy at other temperatures than 1, in evaluation alone, says how sharp a model is, apart from what it knows:
# if the least one is above 1, the model is too sharp, below, too flat.
TEMPERATURES = tuple(tenths / 10 for tenths in range(5, 16))
TOKENS = {"": "all tokens", "answer_": "answer tokens"}  # how the names of metrics begin
_WITHOUT_END = "answer_cross_entropy_without_end"  # as the released code counts answers
_TITLES = NAMES | OF_ROLLOUTS | {_WITHOUT_END: "cross-entropy, answer tokens without end tokens"}
_TITLES |= {f"{of}best_temperature": f"temperature of the least cross-entropy, {TOKENS[of]}" for of in TOKENS}
_PER = dict.fromkeys((*METRICS, *OF_ROLLOUTS), "contexts") | {_WITHOUT_END: "answer_tokens_without_end"}
_PER |= {f"{of}{name}": f"{of}tokens" for of in TOKENS for name in ("cross_entropy", "best_temperature")}


def smaller_is_better(metric: str) -> bool:
    """Of losses, those of tasks too, and of shares of bad answers; not of other rates, rewards and scores."""
    is_loss = any(word in metric for word in ("cross_entropy", "cfm", "loss"))
    return is_loss or metric.endswith(("empty", "cut", "no_code"))


def title(metric: str) -> str:
    """What a metric is called in a table; `cfm_at_8` is of 8 tokens, `cfm_temperature_1` of samples at 1."""
    if found := re.fullmatch(r"cfm_at_(\d+)", metric):
        return f"{NAMES['cfm']} at {found[1]} token{'s' * (found[1] != '1')}"
    base, _, temperature = metric.partition("_temperature_")
    if temperature:
        return f"{title(base)} at temperature {temperature}"
    return _TITLES.get(metric, metric)


def metric_at(temperature: float, of: str = "") -> str:
    """The name of a cross-entropy among the metrics of records."""
    return f"{of}cross_entropy" + ("" if temperature == 1 else f"_temperature_{temperature:g}")


Record = dict[str, Any]


def along_training(entries: Iterable[Record], key: str) -> dict[int, Record]:
    """Entries of metrics.jsonl that have a metric, by step; of two at one step, the later. Without that of the best
    model, which was loaded after the last step."""
    return {
        entry["step"]: entry
        for entry in entries
        if isinstance(entry.get(key), int | float)
        and math.isfinite(entry[key])
        and entry.get("model_step", entry["step"]) == entry["step"]
    }


def estimates(records: Sequence[Record]) -> dict[str, Estimate]:
    """The metrics that anything was counted for."""
    found = {name: ratio_of_sums(*columns) for name, columns in sums_by_metric(records).items()}
    best = best_temperatures(records)
    return found | {name: Estimate(value, standard_error(pulls)) for name, (value, pulls) in best.items()}


def differences(mine: Sequence[Record], other: Sequence[Record]) -> dict[str, Estimate]:
    """`mine` minus `other`, of the metrics that both have. Nothing if these are not the same sequences."""
    mine, other = (sorted(records, key=lambda record: record["sequence"]) for records in (mine, other))
    if [(r["sequence"], r["tokens"]) for r in mine] != [(r["sequence"], r["tokens"]) for r in other]:
        return {}
    ours, theirs, best = sums_by_metric(mine), sums_by_metric(other), best_temperatures(other)
    found = {name: paired_difference(columns, theirs[name]) for name, columns in ours.items() if name in theirs}
    for name, (temperature, pulls) in best_temperatures(mine).items():
        if name in best:
            moved = [a - b for a, b in zip(pulls, best[name][1], strict=False)]
            found[name] = Estimate(temperature - best[name][0], standard_error(moved))
    return found


def best_temperatures(records: Sequence[Record]) -> dict[str, tuple[float, list[float]]]:
    """The temperature of the least cross-entropy, and how each sequence pulls at it, to first order. Nothing where
    there are no tokens to look at, or of a broken model."""
    sums = sums_by_metric(records)
    found = {}
    for of in TOKENS:
        columns = [sums[name] for t in TEMPERATURES if (name := metric_at(t, of)) in sums]
        if len(columns) == len(TEMPERATURES):
            observed = [place for place, count in enumerate(columns[0].counts) if count]
            values, pulls = zip(*(linearized(column, observed) for column in columns), strict=True)
            if all(map(math.isfinite, values)):
                found[f"{of}best_temperature"] = _lowest_point(values, pulls)
    return found


def _lowest_point(values: Sequence[float], pulls: Sequence[list[float]]) -> tuple[float, list[float]]:
    """Of the parabola through the best three temperatures; at an edge of the grid there is none, and no error."""
    at = values.index(min(values))
    if at in (0, len(values) - 1):
        return TEMPERATURES[at], []
    half_step = (TEMPERATURES[at + 1] - TEMPERATURES[at]) / 2
    left, middle, right = values[at - 1 : at + 2]
    slope, bend = right - left, left - 2 * middle + right
    moved = [
        -half_step * ((c - a) / bend - slope * (a - 2 * b + c) / bend**2)
        for a, b, c in zip(*pulls[at - 1 : at + 2], strict=True)
    ]
    return TEMPERATURES[at] - half_step * slope / bend, moved


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
    named = (name.replace("log_probs", "cross_entropy") for record in records for name in record)
    for metric in dict.fromkeys((*METRICS, *named)):
        counts = [record.get(per_what(metric), 0) for record in records]
        if any(counts):
            sums = [_sum(record, metric, count) for record, count in zip(records, counts, strict=True)]
            found[metric] = SumsAndCounts(sums, counts)
    return found


def per_what(metric: str) -> str:
    """The count that a metric of records is per; nothing for what is no metric."""
    return "profile_contexts" if metric.startswith("cfm_at_") else _PER.get(metric.partition("_temperature_")[0], "")


def _sum(record: Record, metric: str, count: int) -> float:
    """A broken model shows: no number from a sequence that counts is NaN, not 0."""
    value = record.get(metric.replace("cross_entropy", "log_probs"))
    if count == 0 or value is None:
        return math.nan if count else 0.0
    return -value if "cross_entropy" in metric else value * count
