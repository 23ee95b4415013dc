"""Runs probes and a right answer, and prints their outcomes as JSON. A program of its own, for another user to run.

Only the standard library is needed: another user may not have our packages.
"""

from __future__ import annotations

import json
import os
import sys

from ebft.errors import SandboxError
from ebft.problems.problem import Attempt, Record, run_many, run_tests
from ebft.problems.python_problems import humaneval_problem
from ebft.sandbox.bubblewrap import Limits
from tests.sandbox.attacks.python import FLOODS, FORGERIES, HEAD, PROBES, TESTS

CHOSEN = PROBES | {name: FLOODS[name] for name in ("forks forever", "allocates in every child", "makes files forever")}
CHOSEN |= {name: FORGERIES[name] for name in ("writes a result into every descriptor", "looks for the tests in files")}

if __name__ == "__main__":
    row = {"task_id": "Own/0", "prompt": HEAD, "entry_point": "add", "test": TESTS}
    problem = humaneval_problem(Record("own", row))
    limits = Limits(seconds=4.0, memory_mib=256, processes=16, disk_mib=16, output_kib=64)
    try:
        found = run_many([Attempt(problem, code, name) for name, code in CHOSEN.items()], limits=limits, workers=2)
        outcomes = {attempt.tag: outcome.status for attempt, outcome in found}
    except SandboxError as error:
        sys.exit(f"refused: {error}")
    outcomes["right"] = run_tests(problem, "    return a + b\n", limits=Limits(seconds=30.0)).status
    print(json.dumps({"user": os.getuid(), "outcomes": outcomes}))
