"""All hostile answers beside honest ones: nothing hostile passes, and no honest verdict changes because of a neighbour.

    python -m tests.hard.attacks --honest 2000 --workers 2

Run it as root and as an ordinary user.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections import Counter

from ebft.problems.problem import Attempt, run_many
from ebft.sandbox.box import Limits
from tests.hard.honest import ANSWERS
from tests.sandbox.attacks import others
from tests.sandbox.attacks.python import FLOODS, FORGERIES, PROBES
from tests.sandbox.multipl_e import own_problem
from tests.sandbox.sandboxed import ADD

LIMITS = Limits(seconds=20.0, memory_mib=512, processes=32, disk_mib=16, output_kib=64)
RIGHT = [f"    x{n} = a\n    return x{n} + b\n" for n in range(50)]
WRONG = [f"    x{n} = a\n    return x{n} - b\n" for n in range(10)]


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("--honest", type=int, default=2000)
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--python-only", action="store_true", help="without the languages of MultiPL-E")
    given = options.parse_args()
    hostile = [Attempt(ADD, code, (name, False)) for name, code in (FORGERIES | PROBES | FLOODS).items()]
    if not given.python_only:
        for language, attacks in others.ATTACKS.items():
            problem = own_problem(language)
            if (missing := problem.unavailable()) is not None:
                print(f"{language}: not run: {missing}")
                continue
            hostile += [Attempt(problem, code, (f"{language}: {name}", False)) for name, code in attacks.items()]
            hostile += [
                Attempt(problem, code, (f"{language}: right", True)) for code in ANSWERS[language]["join_numbers"][:1]
            ]
    answers = itertools.cycle([(code, True) for code in RIGHT] + [(code, False) for code in WRONG])
    honest = [Attempt(ADD, code, ("honest", right)) for code, right in itertools.islice(answers, given.honest)]
    mixed: list[Attempt] = []
    every = max(1, len(honest) // max(1, len(hostile)))
    for place, attempt in enumerate(honest):
        mixed.append(attempt)
        if place % every == 0 and hostile:
            mixed.append(hostile.pop())
    mixed += hostile
    started, counts, wrong = time.monotonic(), Counter[str](), 0
    for attempt, outcome in run_many(mixed, limits=LIMITS, workers=given.workers):
        name, right = attempt.tag
        counts["honest" if name == "honest" else "hostile" if not right else "right in other languages"] += 1
        if outcome.passed != right:
            wrong += 1
            print(f"{name}: {outcome} instead of {'a pass' if right else 'no pass'}")
    told = ", ".join(f"{number} {kind}" for kind, number in counts.items())
    print(f"as user {os.getuid()}: {told}: {wrong} wrong verdicts, {time.monotonic() - started:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
