"""How much of a difference from SFT comes from what SFT never saw: it cuts documents at `max_length` tokens.

    python results/replication/truncation.py runs/replication/little-1000 data/replication/test.jsonl --cut 256

The test sequences are split into those in which every token is within the first `cut` tokens of its document, and
those in which at least 30 % are beyond. Differences are paired, over the mean of the seeds; intervals by bootstrap over
sequences, so they do not cover training again with other seeds.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoTokenizer

from ebft.data.packing import DocumentIndex, tokenize_source
from ebft.fetch import resolve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path)
    parser.add_argument("data")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--context-length", type=int, default=256)
    parser.add_argument("--cut", type=int, default=256)
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(resolve(args.model))
    lengths = DocumentIndex.of(tokenize_source(args.data, tokenizer)).lengths
    beyond = share_beyond(np.asarray(lengths), args.context_length, args.cut)
    rows = {row["title"]: row for row in json.loads((args.study / "study.json").read_text())["rows"]}
    parts = {"all": beyond >= 0, "none beyond": beyond == 0, "at least 30 % beyond": beyond >= 0.3}
    found = []
    for metric in ("", "answer_"):
        for one in (title for title, row in rows.items() if row["kind"] == "ebft"):
            for other in (title for title, row in rows.items() if row["kind"] == "sft"):
                mine, theirs = (mean_over_seeds(args.study, rows[title], metric) for title in (one, other))
                for part, chosen in parts.items():
                    name = f"{metric}cross_entropy"
                    told = {"metric": name, "difference_of": one, "from": other, "sequences": part}
                    found.append({**told, **difference(mine, theirs, chosen[: len(mine)])})
    share = {"share_of_tokens_beyond": float(beyond.mean()), "differences": found}
    print(json.dumps(share, indent=1))


def share_beyond(lengths: np.ndarray, context_length: int, cut: int) -> np.ndarray:
    """Of each packed sequence, the share of tokens that are beyond the first `cut` of their document."""
    place = np.concatenate([np.arange(length) for length in lengths])
    return np.array([(place[start:][:context_length] >= cut).mean() for start in range(0, len(place), context_length)])


def mean_over_seeds(study: Path, row: dict[str, Any], metric: str) -> np.ndarray:
    """Sums of -log p and numbers of tokens, [sequences, 2]."""
    seeds = []
    for model in row["models"]:
        lines = (study / model["evaluation"] / "calibration.jsonl").read_text().splitlines()
        records = sorted(map(json.loads, lines), key=lambda record: record["sequence"])
        seeds.append([(-(r.get(f"{metric}log_probs") or 0.0), r.get(f"{metric}tokens") or 0) for r in records])
    return np.mean(seeds, axis=0)


def difference(mine: np.ndarray, theirs: np.ndarray, chosen: np.ndarray) -> dict[str, Any]:
    sums, counts = (mine - theirs)[chosen, 0], mine[chosen, 1]
    drawn = np.random.default_rng(0).integers(len(sums), size=(10_000, len(sums)))
    low, high = np.percentile(sums[drawn].sum(1) / counts[drawn].sum(1), [2.5, 97.5])
    return {
        "count": len(sums),
        "difference": round(sums.sum() / counts.sum(), 4),
        "interval": [round(float(low), 4), round(float(high), 4)],
    }


if __name__ == "__main__":
    main()
