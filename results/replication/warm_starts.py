"""EBFT from SFT's models in mbpp-rates against the very model that each started from, which no report compares.

    python results/replication/warm_starts.py > results/replication/mbpp-rates/warm-starts.txt

Not corrected for the number of tests.
"""

from __future__ import annotations

import json
from pathlib import Path

from pooled import drawn, metrics_of, shown

from ebft.studies.statistics import Measured, difference

METRICS = ("cross_entropy", "answer_cross_entropy", "cfm", "cfm_temperature_1")
SEEDS = (0, 1)


def main() -> None:
    models = json.loads((Path(__file__).parent / "mbpp-rates" / "sequences.json").read_text())
    for metric in METRICS:

        def runs(method: str, seeds: tuple[int, ...], counted: bool, metric: str = metric) -> list[Measured]:
            found = [metrics_of(models[f"{method},seed={seed}"])[metric] for seed in seeds]
            return [drawn(one, seed) for one, seed in zip(found, seeds, strict=True)] if counted else found

        for told, seeds, counted in (
            *((f"seed {seed}, over sequences", (seed,), False) for seed in SEEDS),
            ("both, with seeds counted", SEEDS, True),
        ):
            one = difference(runs("ebft-warm", seeds, counted), runs("sft-faster", seeds, counted))
            print(f"{metric}, {told}: {one.value:+.4f}, p {shown(one.p)}")


if __name__ == "__main__":
    main()
