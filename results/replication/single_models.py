"""Two single models of the study of translation against each other: corpus BLEU and chrF, by bootstrap over sentences.

    python results/replication/single_models.py > results/replication/translation/single-models.txt

A report compares methods over seeds. Here seed is compared with seed, also on the captions of Multi30k, which only some
models were given. The p-values are about these models, not about training once more, and they are not corrected.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from pooled import shown

from ebft.studies.corpus_scores import Corpus, Metric, difference

WMT22, MULTI30K = Path("runs/replication/translation/evaluations"), Path("runs/replication/multi30k")
SFT = "sft-packed,learning_rate=2e-05"
PAIRS = (
    *((WMT22, f"rlvr-warm,seed={seed}", f"{SFT},seed={seed}") for seed in (0, 1)),
    *((MULTI30K, f"ebft-gamma-{gamma}-seed-1", "sft-packed-learning_rate-2e-05-seed-1") for gamma in ("0.3", "1")),
    (MULTI30K, "rlvr-warm-seed-1", "sft-packed-learning_rate-2e-05-seed-1"),
    (MULTI30K, "rlvr-warm-seed-1", "gemma3-270m"),
)


def main() -> None:
    for folder, mine, other in PAIRS:
        for metric in ("bleu", "chrf"):
            one = difference([_corpus(folder / mine, metric)], [_corpus(folder / other, metric)])
            test = "WMT22" if folder == WMT22 else "Multi30k"
            print(f"{test}, {metric}: {mine} less {other}: {one.value:+.2f}, p {shown(one.p)}")


def _corpus(folder: Path, metric: Metric) -> Corpus:
    rows = [json.loads(line) for line in (folder / "translation.greedy.scores.jsonl").read_text().splitlines()]
    rows.sort(key=lambda row: int(row["task_id"]))
    return Corpus(metric, np.array([row[f"{metric}_statistics"] for row in rows]))


if __name__ == "__main__":
    main()
