"""The data of the replication: Q&A code in parts that do not overlap, always the same.

    python results/replication/data.py --codealpaca code_alpaca_2k.json new_codealpaca.json \
        --leetcode LeetCodeDataset-v0.2.0-train.jsonl --out data/replication

CodeAlpaca (https://github.com/sahil280114/codealpaca, commit 2f78ddc5c682; rows with instruction, input and output) and
LeetCodeDataset (https://github.com/newfacade/LeetCodeDataset, v0.2.0; rows with query and completion) are not part of
this project: see their licences. The studies had these files in this order (it decides what is where), of LeetCode the
1,876 of 1,890 rows whose completion passed its own test within 8 s (leetcode-kept.txt has their task_id): 8,426
documents in all. Test and validation data come first, then the training data, of which the smaller sets are the
beginning of the larger. The last line says whether these are the documents that the studies had.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
from pathlib import Path

from ebft.data.row_format import Row
from ebft.data.rows import read_rows
from ebft.runtime.files import write_jsonl

TEST, VALIDATION = 500, 500
TRAINING = (300, 1000, 3000)
# All documents in their order, as the studies had them.
STUDIED = "aea1f0168ae47900ccc2e4ad36ab84bd0c64fe67052c761e67b6b5109026bd72"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--codealpaca", type=Path, nargs="+", required=True)
    parser.add_argument("--leetcode", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    kept = set(Path(__file__).with_name("leetcode-kept.txt").read_text().split())
    rows = [_codealpaca(row) for file in args.codealpaca for row in read_rows(str(file))]
    rows += [
        {"prompt": f"{row['query'].strip()}\n\n", "completion": row["completion"].strip()}
        for row in read_rows(str(args.leetcode))
        if row["task_id"] in kept
    ]
    distinct = list({row["prompt"]: row for row in rows if row["completion"]}.values())  # no question on both sides
    random.Random(0).shuffle(distinct)
    if len(distinct) < TEST + VALIDATION + max(TRAINING):
        raise ValueError(f"{len(distinct)} documents are too few for {TEST + VALIDATION + max(TRAINING)}")
    test, validation, training = distinct[:TEST], distinct[TEST : TEST + VALIDATION], distinct[TEST + VALIDATION :]
    parts = {"test": test, "validation": validation, "train-all": training}
    parts |= {f"train-{size}": training[:size] for size in TRAINING}
    args.out.mkdir(parents=True, exist_ok=True)
    for name, part in parts.items():
        write_jsonl(args.out / f"{name}.jsonl", part)
        print(f"{name}: {len(part)} documents")
    digest = hashlib.sha256(json.dumps([[row["prompt"], row["completion"]] for row in distinct]).encode()).hexdigest()
    same = "the documents of the studies" if digest == STUDIED else "not quite the documents of the studies"
    print(f"{len(distinct)} in all, {same}")


def _codealpaca(row: Row) -> dict[str, str]:
    question = "\n".join(part.strip() for part in (row["instruction"], row.get("input", "")) if part.strip())
    return {"prompt": f"{question}\n\n", "completion": row["output"].strip()}


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"data.py: {type(error).__name__}: {error}")
