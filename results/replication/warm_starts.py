"""Models against the very models that they started from, which no report compares: the base model, or SFT's.

    python results/replication/warm_starts.py

Writes `starts.txt` beside the reports. Not corrected for the number of tests.
"""

from __future__ import annotations

from pathlib import Path

from against_sft import METRICS, methods
from pooled import shown

from ebft.studies.statistics import Measured, difference

STARTS = {
    "mbpp": {
        "rlvr": "base",
        "rlvr-warm": "sft-packed,learning_rate=0.0001",
        "ebft-warm": "sft-packed,learning_rate=0.0001",
    },
    "mbpp-rates": {"ebft-warm": "sft-faster"},
}


def main() -> None:
    for study, pairs in STARTS.items():
        lines = [line for method, start in pairs.items() for line in compared(study, method, start)]
        (Path(__file__).parent / study / "starts.txt").write_text("\n".join([*lines, ""]))


def compared(study: str, method: str, start: str) -> list[str]:
    lines, runs = [], methods(study)
    for metric in METRICS:
        models: list[Measured] = runs[method][metric]
        tests = {f"seed {one.seed}, over sequences": [one] for one in models}
        if len(models) > 1:
            tests["both, with seeds counted"] = models
        for told, mine in tests.items():
            theirs = [one for one in runs[start][metric] if one.seed in (None, *(model.seed for model in mine))]
            found = difference(mine, theirs)
            lines.append(f"{metric}, {method} less {start}, {told}: {found.value:+.4f}, p {shown(found.p)}")
    return lines


if __name__ == "__main__":
    main()
