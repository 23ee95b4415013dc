"""The settings of EBFT in little-1000-options against SFT on the same sequences, from little-1000-more: the same
documents, validation and test sequences, and two seeds. SFT's rate was chosen there, and it may train for longer.

    python results/replication/against_sft.py
"""

from __future__ import annotations

import json
from collections import defaultdict
from functools import cache
from pathlib import Path

from pooled import drawn, metrics_of, told

from ebft.studies.statistics import Measured, difference, holm

SFT = ("little-1000-more", "sft-packed,learning_rate=0.0001")
METRICS = ("cross_entropy", "answer_cross_entropy", "cfm", "cfm_temperature_1")


def main() -> None:
    sft = methods(SFT[0])[SFT[1]]
    found = [
        (metric, method, difference(runs[metric], sft[metric]))
        for metric in METRICS
        for method, runs in methods("little-1000-options").items()
        if len(runs[metric]) == len(sft[metric])
    ]
    for (metric, method, one), p in zip(found, holm([one.p for *_, one in found]), strict=True):
        print(f"{metric}, {method}: {told(one, p, len(found))}")


@cache
def methods(study: str) -> dict[str, dict[str, list[Measured]]]:
    """By method and metric, the models of all seeds; the base model has none."""
    models = json.loads((Path(__file__).parent / study / "sequences.json").read_text())
    found: dict[str, dict[str, list[Measured]]] = defaultdict(lambda: defaultdict(list))
    for name, columns in models.items():
        method, _, seed = name.partition(",seed=")
        for metric, one in metrics_of(columns).items():
            found[method][metric].append(drawn(one, int(seed) if seed else None))
    return found


if __name__ == "__main__":
    main()
