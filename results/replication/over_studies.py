"""EBFT against SFT on the same sequences over the studies that are measured with ends, in per cent of SFT's value.

    python results/replication/over_studies.py

Pooled with weights by the inverse variance and a spread between studies (DerSimonian and Laird). A study's error is its
interval, which counts sequences and seeds, over 1.96, so too large with few seeds. The two studies of Q&A code share
their test sequences.
"""

from __future__ import annotations

import math
from statistics import NormalDist

from against_sft import methods

from ebft.studies.statistics import difference, summarise

# By gamma, study: EBFT and SFT, names of runs without their seeds. On MBPP at equal learning rates.
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
        "raw-code": ("ebft", "sft-packed"),
        "mbpp": ("ebft,gamma=1", "sft-packed,learning_rate=0.0001"),
        "translation": ("ebft,gamma=1", "sft-packed,learning_rate=2e-05"),
    },
}


METRICS = ("cross_entropy", "answer_cross_entropy", "cfm", "cfm_temperature_1")


def main() -> None:
    for gamma in PAIRS:
        for metric in METRICS:
            found = by_study(gamma, metric)
            for study, (value, error) in found.items():
                print(f"{gamma}, {metric}, {study}: {value:+.2f} % (standard error {error:.2f})")
            value, error = pooled(list(found.values()))
            p = 2 * NormalDist().cdf(-abs(value) / error)
            low, high = value - 1.96 * error, value + 1.96 * error
            told = "< 0.0001" if p < 1e-4 else f"= {p:.4f}"
            print(f"{gamma}, {metric}, {len(found)} studies: {value:+.2f} % [{low:+.2f}, {high:+.2f}], p {told}\n")


def by_study(gamma: str, metric: str) -> dict[str, tuple[float, float]]:
    """EBFT less SFT and its standard error, of the studies that measured it."""
    found = {}
    for study, (ebft, sft) in PAIRS[gamma].items():
        runs = methods(study)
        if metric in runs[ebft] and metric in runs[sft]:
            one = difference(runs[ebft][metric], runs[sft][metric])
            of = summarise(runs[sft][metric]).value / 100
            found[study] = (one.value / of, one.error / 1.96 / of)
    return found


def pooled(found: list[tuple[float, float]]) -> tuple[float, float]:
    """Mean and standard error of estimates with theirs."""
    weights = [1 / error**2 for _, error in found]
    total = math.fsum(weights)
    mean = math.fsum(w * value for w, (value, _) in zip(weights, found, strict=True)) / total
    spread = math.fsum(w * (value - mean) ** 2 for w, (value, _) in zip(weights, found, strict=True))
    scale = total - math.fsum(w**2 for w in weights) / total
    between = max(0.0, (spread - len(found) + 1) / scale)
    weights = [1 / (error**2 + between) for _, error in found]
    total = math.fsum(weights)
    return math.fsum(w * value for w, (value, _) in zip(weights, found, strict=True)) / total, total**-0.5


if __name__ == "__main__":
    main()
