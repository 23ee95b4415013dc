"""Whoever starts a sandbox is killed at a random moment of its start: nothing is left running.

python -m tests.hard.parents --trials 500
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time

from ebft.sandbox.box import Command, Limits, Sandbox
from tests.hard import options
from tests.sandbox.sandboxed import gone, processes_of


def main() -> int:
    given = options(trials=500, seed=0)
    sandbox, draw = Sandbox(), random.Random(given.seed)
    sandbox.check()
    started = time.monotonic()
    sandbox.run(Command(["/usr/bin/true"]))
    longest = 2 * (time.monotonic() - started)
    marker = f"EBFT_HARD_PARENTS={os.getpid()}."
    for number in range(given.trials):
        environment = dict([f"{marker}{number}".split("=")])
        if (parent := os.fork()) == 0:
            sandbox.run(Command(["/usr/bin/sleep", "1000"], Limits(seconds=600.0), environment=environment))
        time.sleep(draw.uniform(0.0, longest))
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
    if not gone(marker):
        print(f"{len(processes_of(marker))} processes are left after {given.trials} trials: {processes_of(marker)}")
        return 1
    print(f"{given.trials} processes were killed within {longest:.3f} s of starting a sandbox: nothing is left")
    return 0


if __name__ == "__main__":
    sys.exit(main())
