"""MBPP as prompts, solutions and tests, in the form in which `ebft eval` asks for its problems.

    python results/replication/mbpp.py --train mbpp_train.jsonl --validation mbpp_validation.jsonl \
        --test mbpp_test.jsonl --out data/mbpp

MBPP (https://github.com/google-research/google-research/tree/master/mbpp; rows with text, code, test_list and
task_id) is not part of this project: see its licence. Its own split by task_id: 601 to 974 for training, 511
to 600 for validation, 11 to 510 for the test.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

from ebft.problems.mbpp import mbpp_problem
from ebft.problems.records import Record, read_records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("train", "validation", "test", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name in ("train", "validation", "test"):
        documents = [_document(record) for record in read_records(str(getattr(args, name)))]
        (args.out / f"{name}.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))
        print(f"{name}: {len(documents)} problems")
    shutil.copy(args.test, args.out / "problems.jsonl")  # as `ebft eval` reads them


def _document(record: Record) -> dict[str, object]:
    problem = mbpp_problem(record)
    code = problem.reference.replace("\r\n", "\n").replace("\t", "    ").strip()
    tests = {"test_list": list(problem.tests), "test_setup_code": problem.setup}
    return {"prompt": problem.prompt("raw"), "completion": code, **tests}


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError) as error:
        sys.exit(f"mbpp.py: {error}")
