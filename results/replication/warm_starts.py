"""EBFT from SFT's models in mbpp-rates against the very model that each started from, which no report compares.

    python results/replication/warm_starts.py > results/replication/mbpp-rates/warm-starts.txt

Not corrected for the number of tests.
"""

from __future__ import annotations

from against_sft import METRICS, methods
from pooled import shown

from ebft.studies.statistics import difference


def main() -> None:
    runs = methods("mbpp-rates")
    for metric in METRICS:
        warm = runs["ebft-warm"][metric]
        starts = runs["sft-faster"][metric][: len(warm)]  # seed by seed
        pairs = [(f"seed {one.seed}, over sequences", [one], [other]) for one, other in zip(warm, starts, strict=True)]
        for told, mine, other in [*pairs, ("both, with seeds counted", warm, starts)]:
            found = difference(mine, other)
            print(f"{metric}, {told}: {found.value:+.4f}, p {shown(found.p)}")


if __name__ == "__main__":
    main()
