"""All hostile answers beside honest ones: nothing hostile passes, and no honest verdict changes because of a neighbour.

    python -m tests.hard.attacks --honest 2000 --workers 2 [--seconds 20] [--python-only]

Run it as root and as an ordinary user.
"""

import os
import sys
import time
from collections import Counter

from ebft.problems.problem import Attempt, run_many
from ebft.sandbox.box import Limits
from tests.hard import options
from tests.hard.honest import ANSWERS
from tests.sandbox.attacks import others
from tests.sandbox.attacks.python import ADD, FLOODS, FORGERIES, PROBES
from tests.sandbox.multipl_e import own_problem


def main() -> int:
    given = options(honest=2000, workers=2, seconds=20.0, python_only=False)
    limits = Limits(given.seconds, memory_mib=512, processes=32, disk_mib=16, output_kib=64)
    hostile = [Attempt(ADD, code, (name, False)) for name, code in (FORGERIES | PROBES | FLOODS).items()]
    for language, attacks in others.ATTACKS.items() if not given.python_only else ():
        problem, right = own_problem(language), ANSWERS[language]["join_numbers"][0]
        if (missing := problem.unavailable()) is not None:
            print(f"{language}: not run: {missing}")
            continue
        hostile += [Attempt(problem, code, (f"{language}: {name}", False)) for name, code in attacks.items()]
        hostile.append(Attempt(problem, right, (f"{language}: right", True)))
    mixed: list[Attempt] = []
    every = max(1, given.honest // len(hostile))
    for n in range(given.honest):  # one in six is wrong
        mixed.append(Attempt(ADD, f"    x{n % 60} = a\n    return x{n % 60} {'-' if n % 6 == 5 else '+'} b\n"))
        mixed[-1].tag = ("honest", n % 6 != 5)
        if n % every == 0 and hostile:
            mixed.append(hostile.pop())
    started, counts, wrong = time.monotonic(), Counter[str](), 0
    for attempt, outcome in run_many([*mixed, *hostile], limits=limits, workers=given.workers):
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
