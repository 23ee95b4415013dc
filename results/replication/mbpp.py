"""MBPP as prompts, solutions and tests, in the form in which `ebft eval` asks for its problems.

    python results/replication/mbpp.py --train mbpp_train.jsonl --validation mbpp_validation.jsonl \
        --test mbpp_test.jsonl --out data/mbpp

MBPP (https://github.com/google-research/google-research/tree/master/mbpp; rows with text, code, test_list and
test_setup_code) is not part of this project: see its licence.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ebft.problems.mbpp import mbpp_problem
from ebft.problems.records import Record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("train", "validation", "test", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name in ("train", "validation", "test"):
        rows = [json.loads(line) for line in getattr(args, name).read_text().splitlines()]
        (args.out / f"{name}.jsonl").write_text("".join(json.dumps(_as_document(row)) + "\n" for row in rows))
        print(f"{name}: {len(rows)} problems")


def _as_document(row: dict[str, object]) -> dict[str, object]:
    problem = mbpp_problem(Record("a row", row))
    code = problem.reference.replace("\r\n", "\n").replace("\t", "    ").strip()
    return {
        "prompt": problem.prompt("raw"),
        "completion": code,
        "test_list": row["test_list"],
        "test_setup_code": row["test_setup_code"],
    }


if __name__ == "__main__":
    main()
