"""RLVR in the studies of translation against the SFT models that it started from: BLEU and chrF, by bootstrap over
sentences.

    python results/replication/single_models.py > results/replication/translation/single-models.txt

A report compares methods over seeds, this seed with seed. The p-values are about these models, not about training once
more, and they are not corrected.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
from pooled import shown

from ebft.runtime.files import read_jsonl
from ebft.studies.statistics import Corpus, difference

TESTS = {
    "WMT22": Path("runs/replication/translation/evaluations"),
    "Multi30k": Path("runs/replication/translation-multi30k/evaluations"),
}
SFT = "sft-packed,learning_rate=2e-05"
METRICS = ("bleu", "chrf")


def main() -> None:
    for (test, folder), seed, metric in itertools.product(TESTS.items(), (0, 1), METRICS):
        mine, other = f"rlvr-warm,seed={seed}", f"{SFT},seed={seed}"
        one = difference([_corpus(folder / mine, metric)], [_corpus(folder / other, metric)])
        print(f"{test}, {metric}: {mine} less {other}: {one.value:+.2f}, p {shown(one.p)}")


def _corpus(folder: Path, metric: str) -> Corpus:
    rows = sorted(read_jsonl(folder / "translation.greedy.scores.jsonl"), key=lambda row: int(row["task_id"]))
    return Corpus(metric, np.array([row[f"{metric}_statistics"] for row in rows]))


if __name__ == "__main__":
    main()
