"""EBFT with gamma 1 against SFT on the same sequences, over the studies that have both, with their seeds as the draws.

    python results/replication/pooled.py

The models of all studies were measured on the same test sequences. A study's seed is a draw of its own, so that what
differs between studies (data, learning rate) counts as spread.
"""

from __future__ import annotations

import json
from pathlib import Path

from ebft.method.measures import sums_by_metric
from ebft.studies.statistics import Measured, Summary, difference, holm, measured

# By study, the names of runs without their seeds: EBFT and SFT.
PAIRS = {
    "little-1000-packed": ("ebft,gamma=1", "sft-packed,learning_rate=0.0001"),
    "little-3000": ("ebft,gamma=1", "sft-packed,learning_rate=0.0001"),
    "plenty": ("ebft", "sft-packed,learning_rate=0.0001"),
}
METRICS = ("cross_entropy", "answer_cross_entropy", "cfm", *(f"cfm_at_{2**power}" for power in range(8)))


def main() -> None:
    found: dict[str, Summary] = {}
    pairs = [pair for study in PAIRS for pair in _pairs(study)]
    for metric in METRICS:
        sides = [[drawn(pair[side][metric], draw) for draw, pair in enumerate(pairs)] for side in (0, 1)]
        found[metric] = difference(*sides)
    lengths = [metric for metric in found if metric.startswith("cfm_at_")]
    for family in ([metric for metric in found if metric not in lengths], lengths):
        for metric, p in zip(family, holm([found[metric].p for metric in family]), strict=True):
            print(f"{metric}: {told(found[metric], p, len(family))}, {found[metric].seeds} pairs of runs")


def told(one: Summary, corrected: float, tests: int) -> str:
    assert one.interval is not None
    return (
        f"{one.value:+.4f} [{one.interval.low:+.4f}, {one.interval.high:+.4f}], p {shown(one.p)}, "
        f"{shown(corrected)} after correction for {tests} tests"
    )


def shown(p: float) -> str:
    return "< 0.0001" if p < 1e-4 else f"= {p:.4f}"


def _pairs(study: str) -> list[tuple[dict[str, Measured], dict[str, Measured]]]:
    """EBFT and SFT of every seed that both have."""
    models = json.loads((Path(__file__).parent / study / "sequences.json").read_text())
    ebft, sft = PAIRS[study]
    seeds = [seed for seed in range(3) if f"{ebft},seed={seed}" in models and f"{sft},seed={seed}" in models]
    return [(metrics_of(models[f"{ebft},seed={seed}"]), metrics_of(models[f"{sft},seed={seed}"])) for seed in seeds]


def metrics_of(columns: dict[str, list[float | None]]) -> dict[str, Measured]:
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    records = [{name: value for name, value in row.items() if value is not None} for row in rows]
    return {name: measured(sums) for name, sums in sums_by_metric(records).items()}


def drawn(one: Measured, draw: int | None) -> Measured:
    return Measured(one.value, one.pulls, draw)


if __name__ == "__main__":
    main()
