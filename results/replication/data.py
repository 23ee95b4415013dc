"""The data of the replication: Q&A code in parts that do not overlap, always the same.

    python results/replication/data.py --codealpaca FILE... --leetcode FILE --out data/replication

CodeAlpaca (https://github.com/sahil280114/codealpaca; rows with instruction, input and output) and LeetCodeDataset
(https://github.com/newfacade/LeetCodeDataset; rows with query and completion) are not part of this project: see their
licences. Test and validation data come first, then the training data, of which the smaller sets are the beginning of
the larger.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

TEST, VALIDATION = 500, 500
TRAINING = (300, 1000, 3000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--codealpaca", type=Path, nargs="+", required=True)
    parser.add_argument("--leetcode", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    rows = [_codealpaca(row) for file in args.codealpaca for row in _rows(file)]
    rows += [
        {"prompt": f"{row['query'].strip()}\n\n", "completion": row["completion"].strip()}
        for row in _rows(args.leetcode)
    ]
    distinct = list({row["prompt"]: row for row in rows if row["completion"]}.values())  # no question on both sides
    random.Random(0).shuffle(distinct)
    test, validation, training = distinct[:TEST], distinct[TEST : TEST + VALIDATION], distinct[TEST + VALIDATION :]
    parts = {"test": test, "validation": validation, "train-all": training}
    parts |= {f"train-{size}": training[:size] for size in TRAINING}
    args.out.mkdir(parents=True, exist_ok=True)
    for name, part in parts.items():
        (args.out / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
        print(f"{name}: {len(part)} documents")


def _rows(file: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def _codealpaca(row: dict[str, str]) -> dict[str, str]:
    question = "\n".join(part.strip() for part in (row["instruction"], row.get("input", "")) if part.strip())
    return {"prompt": f"{question}\n\n", "completion": row["output"].strip()}


if __name__ == "__main__":
    main()
