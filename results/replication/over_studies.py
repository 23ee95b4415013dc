"""EBFT against SFT on the same sequences over the studies that are measured with ends, in per cent of SFT's value.

    python results/replication/over_studies.py

Pooled with weights by the inverse variance and a spread between studies (DerSimonian and Laird); intervals and p-values
by Student's t over studies (Knapp and Hartung, never narrower than without). The last lines have the p-values after
Holm's correction for their number. A study's own error is its interval, which counts sequences and seeds, over 1.96, so
too large with few seeds. The studies of Q&A code share their test sequences.
"""

from __future__ import annotations

import math

from against_sft import METRICS, methods
from pooled import shown
from scipy.stats import t

from ebft.studies.statistics import difference, holm, summarise

# By gamma, study: EBFT and SFT, names of runs without their seeds. On MBPP gamma 0.3 has SFT's rate, 5e-5.
PAIRS = {
    "gamma 0.3": {
        "little-300-ends": ("ebft,gamma=0.3", "sft-packed"),
        "little-1000-ends": ("ebft,gamma=0.3", "sft-packed"),
        "mbpp-rates": ("ebft", "sft-packed"),
        "translation": ("ebft,gamma=0.3", "sft-packed,learning_rate=2e-05"),
    },
    "gamma 1": {
        "little-300-ends": ("ebft,gamma=1", "sft-packed"),
        "little-1000-ends": ("ebft,gamma=1", "sft-packed"),
        "little-1000-more": ("ebft-linear,learning_rate=0.0001", "sft-linear,learning_rate=0.0002"),
        "raw-code": ("ebft", "sft-packed"),
        "mbpp": ("ebft,gamma=1", "sft-packed,learning_rate=0.0001"),
        "translation": ("ebft,gamma=1", "sft-packed,learning_rate=2e-05"),
    },
}
# The same settings and seeds of EBFT on MBPP, trained before, against SFT at its own rate.
BEFORE = {**PAIRS["gamma 0.3"], "mbpp": ("ebft,gamma=0.3", "sft-packed,learning_rate=0.0001")}
del BEFORE["mbpp-rates"]
NO_ANSWERS = "raw-code"  # every token counts as one of an answer


def main() -> None:
    p_values = {}
    for gamma, pairs in PAIRS.items():
        for metric in METRICS:
            found = by_study(pairs, metric)
            for study, (value, error) in found.items():
                print(f"{gamma}, {metric}, {study}: {value:+.2f} % (standard error {error:.2f})")
            value, error, half = pooled(list(found.values()))
            p = p_values[gamma, metric] = 2 * t.sf(abs(value / error), len(found) - 1)
            spread = f"[{value - half:+.2f}, {value + half:+.2f}], p {shown(p)}"
            print(f"{gamma}, {metric}, {len(found)} studies: {value:+.2f} % {spread}\n")
    print(f"After correction for these {len(p_values)} tests:")
    for (gamma, metric), p in zip(p_values, holm(list(p_values.values())), strict=True):
        print(f"{gamma}, {metric}: p {shown(p)}")
    value, error, _ = pooled(list(by_study(BEFORE, "cfm").values()))
    p = 2 * t.sf(abs(value / error), len(BEFORE) - 1)
    print(f"\nWith mbpp instead of mbpp-rates: gamma 0.3, cfm: {value:+.2f} %, p {shown(p)} alone")


def by_study(pairs: dict[str, tuple[str, str]], metric: str) -> dict[str, tuple[float, float]]:
    """EBFT less SFT and its standard error, of the studies that measured it."""
    found = {}
    for study, (ebft, sft) in pairs.items():
        runs = methods(study)
        measured = metric in runs[ebft] and metric in runs[sft]
        if measured and (metric, study) != ("answer_cross_entropy", NO_ANSWERS):
            one = difference(runs[ebft][metric], runs[sft][metric])
            of = summarise(runs[sft][metric]).value / 100
            found[study] = (one.value / of, one.error / 1.96 / of)
    return found


def pooled(found: list[tuple[float, float]]) -> tuple[float, float, float]:
    """Mean of estimates with standard errors, its own, and half of its 95 % interval."""
    between = 0.0
    for _ in range(2):  # without a spread between studies, from which it is found; then with it
        weights = [1 / (error**2 + between) for _, error in found]
        total = math.fsum(weights)
        mean = math.fsum(w * value for w, (value, _) in zip(weights, found, strict=True)) / total
        unlike = math.fsum(w * (value - mean) ** 2 for w, (value, _) in zip(weights, found, strict=True))
        if not between:
            between = max(0.0, (unlike - len(found) + 1) / (total - math.fsum(w**2 for w in weights) / total))
    error = math.sqrt(max(1.0, unlike / (len(found) - 1)) / total)
    return mean, error, float(t.ppf(0.975, len(found) - 1)) * error


if __name__ == "__main__":
    main()
