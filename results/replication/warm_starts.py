"""Models against the very models that they started from: the base model, or SFT's. And on MBPP at equal rates EBFT
after SFT against its control, SFT that goes on, and both methods at the higher rate. No report compares these.

    python results/replication/warm_starts.py

Writes `starts.txt` beside the reports: losses over sequences, and problems solved over problems. Not corrected for the
number of tests.
"""

from __future__ import annotations

import json
from collections import defaultdict
from functools import cache
from pathlib import Path

from against_sft import METRICS, methods
from pooled import shown

from ebft.evaluate.scoring import pass_at_k
from ebft.method.measures import SumsAndCounts
from ebft.studies.statistics import Measured, difference, measured

PAIRS = {
    "mbpp": [
        ("rlvr", "base"),
        ("sft-packed,learning_rate=0.0001", "base"),
        ("ebft,gamma=0.3", "base"),
        ("ebft,gamma=1", "base"),
        ("rlvr-warm", "sft-packed,learning_rate=0.0001"),
        ("ebft-warm", "sft-packed,learning_rate=0.0001"),
    ],
    "mbpp-rates": [
        ("ebft-warm", "sft-faster"),
        ("sft-warm", "sft-faster"),
        ("ebft-warm", "sft-warm"),
        ("ebft-faster", "sft-faster"),
    ],
}
SAMPLES = 4  # answers to a problem beside the greedy one


def main() -> None:
    for study, pairs in PAIRS.items():
        lines = [line for method, other in pairs for line in compared(study, method, other)]
        file = Path(__file__).parent / study / "starts.txt"
        file.write_text("\n".join([*lines, ""]))
        print(file)


def compared(study: str, method: str, other: str) -> list[str]:
    lines, runs, solved = [], methods(study), problems(study)
    for metric in (*METRICS, *solved.get(method, ())):
        over, of = ("problems", solved) if metric not in METRICS else ("sequences", runs)
        models: list[Measured] = of[method][metric]
        tests = {f"seed {one.seed}, over {over}": [one] for one in models}
        if len(models) > 1:
            tests["all, with seeds counted"] = models
        for told, mine in tests.items():
            theirs = [one for one in of[other][metric] if one.seed in (None, *(model.seed for model in mine))]
            found = difference(mine, theirs)
            lines.append(f"{metric}, {method} less {other}, {told}: {found.value:+.4f}, p {shown(found.p)}")
    return lines


@cache
def problems(study: str) -> dict[str, dict[str, list[Measured]]]:
    """By method, which problems the models of all seeds solve: greedily, by one of their samples, by any of them."""
    file = Path(__file__).parent / study / "problems.json"
    models = json.loads(file.read_text()) if file.exists() else {}
    found: dict[str, dict[str, list[Measured]]] = defaultdict(lambda: defaultdict(list))
    for name, of_task in models.items():
        method, _, seed = name.partition(",seed=")
        greedy, sampled = (of_task[f"mbpp.{kind}"].values() for kind in ("greedy", "samples"))
        rates = {f"pass@{k}": [float(pass_at_k(SAMPLES, passed, k)) for passed in sampled] for k in (1, SAMPLES)}
        rates = {"greedy": list(greedy), **rates}
        for metric, rate in rates.items():
            given = SumsAndCounts(rate, [1] * len(rate))
            found[method][metric].append(measured(given, int(seed) if seed else None))
    return found


if __name__ == "__main__":
    main()
