"""Whoever starts a sandbox is killed at a random moment of its start: nothing is left running.

python -m tests.hard.parents --trials 500
"""

import os
import random
import signal
import sys
import time

from ebft.sandbox.box import Command, Limits, Sandbox
from tests.hard import options
from tests.sandbox.sandboxed import gone, processes_of


def main() -> int:
    given, sandbox = options(trials=500, seed=0), Sandbox()
    draw, marker = random.Random(given.seed), f"EBFT_HARD_PARENTS={os.getpid()}."
    sandbox.check()
    started = time.monotonic()
    sandbox.run(Command(["/usr/bin/true"]))
    longest = 2 * (time.monotonic() - started)
    for number in range(given.trials):
        environment = dict([f"{marker}{number}".split("=")])
        if (parent := os.fork()) == 0:
            sandbox.run(Command(["/usr/bin/sleep", "1000"], Limits(seconds=600.0), environment=environment))
        time.sleep(draw.uniform(0.0, longest))
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
    left = [] if gone(marker) else processes_of(marker)
    print(f"{given.trials} processes were killed within {longest:.3f} s of starting a sandbox; left running: {left}")
    return int(bool(left))


if __name__ == "__main__":
    sys.exit(main())
