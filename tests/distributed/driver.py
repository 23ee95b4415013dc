"""Runs `ebft`, and kills the process with rank KILL_RANK, as `kill -9` would, at step KILL_STEP: in the middle of it,
or while a checkpoint is written (KILL_WHEN=save; shards: when only those of the model are there). With SLEEP it falls
asleep for so many seconds instead. Used by test_faults.py."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from ebft.cli import main as ebft
from ebft.runtime import launch

_PLACES = {"step": "training_step", "save": "_save_rng_state", "shards": "_save_optimizer_and_scheduler"}


def main(arguments: list[str]) -> int:
    launch.ENTRY = (__file__,)
    if os.environ.get("KILL_RANK", "") == os.environ.get("RANK", "none"):
        arm()
    return ebft(arguments)


def arm() -> None:
    from ebft.train.trainer import EBFTTrainer

    name = _PLACES[os.environ.get("KILL_WHEN", "step")]
    original = getattr(EBFTTrainer, name)

    def deadly(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == int(os.environ["KILL_STEP"]):
            if "SLEEP" not in os.environ:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(float(os.environ["SLEEP"]))
        return original(self, *args, **kwargs)

    setattr(EBFTTrainer, name, deadly)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
