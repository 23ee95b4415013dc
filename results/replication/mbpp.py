"""MBPP as prompts, solutions and tests, in the form in which `ebft eval` asks for its problems.

    curl -LO https://github.com/google-research/google-research/raw/master/mbpp/mbpp.jsonl
    python results/replication/mbpp.py --mbpp mbpp.jsonl --out data/mbpp

MBPP (rows with text, code, test_list and task_id) is not part of this project: see its licence. It is split by task_id
as its authors do.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ebft.problems.problem import Record, read_records
from ebft.problems.python_problems import mbpp_problem
from ebft.runtime.files import write_jsonl

PARTS = {"train": range(601, 975), "validation": range(511, 601), "test": range(11, 511)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mbpp", type=Path, nargs="+", required=True, help="its one file, or one for each part")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    records = [record for file in args.mbpp for record in read_records(str(file))]
    args.out.mkdir(parents=True, exist_ok=True)
    for name, ids in PARTS.items():
        problems = [record for record in records if record.row.get("task_id") in ids]
        if len(problems) != len(ids):
            raise ValueError(f"{len(problems)} of the {len(ids)} problems of the {name} part are there")
        write_jsonl(args.out / f"{name}.jsonl", [_document(problem) for problem in problems])
        print(f"{name}: {len(problems)} problems")
    write_jsonl(args.out / "problems.jsonl", [problem.row for problem in problems])  # the test, as `ebft eval` reads it


def _document(record: Record) -> dict[str, object]:
    problem = mbpp_problem(record)
    code = record.text("code").replace("\r\n", "\n").replace("\t", "    ").strip()
    tests = {"test_list": record.row["test_list"], "test_setup_code": problem.tests.setup}
    return {"prompt": problem.raw.prompt, "completion": code, **tests}


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError) as error:
        sys.exit(f"mbpp.py: {error}")
