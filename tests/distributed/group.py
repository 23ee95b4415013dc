"""Groups of processes for the tests, forked from one that has imported everything: starting them costs nothing."""

import gc
import multiprocessing
import os
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PRELOADED = ["ebft.train.run", "ebft.baselines.sft", "ebft.baselines.rlvr", "ebft.evaluate.commands"]
PRELOADED += ["ebft.studies.commands", "matplotlib.pyplot"]
HANGS = 600  # seconds; a minute is usual, more where the machine is busy with other work


@dataclass
class Ended:
    codes: list[int]  # by rank; negative: killed by that signal
    said: list[str]  # what each wrote to standard error and output


def start(
    files: list[Path], target: Callable[..., Any], *args: Any, variables: Mapping[str, str] | None = None
) -> list[Any]:
    """Call `target(*args)` in a process for each file, which gets what it says, with torchrun's variables."""
    os.environ["OMP_NUM_THREADS"] = "1"  # for all processes forked later
    context: Any = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.distributed.test_invariance", *PRELOADED])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group, size = [], str(len(files))
    for rank, file in enumerate(files):
        environment = dict(variables or {})
        if len(files) > 1:
            environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_WORLD_SIZE": size}
            environment |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": size}
        group.append(context.Process(target=_child, args=(environment, file, target, args)))
        group[-1].start()
    return group


def run(
    processes: int, target: Callable[..., Any], *args: Any, folder: Path, variables: Mapping[str, str] | None = None
) -> Ended:
    """The same with so many processes, and wait for all of them."""
    files = [folder / f"said-{rank}.txt" for rank in range(processes)]
    for file in files:
        file.unlink(missing_ok=True)
    group = start(files, target, *args, variables=variables)
    for process in group:
        process.join(HANGS)
    hanging = [process for process in group if process.is_alive()]
    for process in hanging:
        process.kill()
    said = [file.read_text(errors="replace") if file.exists() else "" for file in files]
    assert not hanging, f"{len(hanging)} of {processes} processes hang: {said}"
    return Ended([process.exitcode for process in group], said)


def _child(environment: dict[str, str], file: Path, target: Callable[..., Any], args: tuple[Any, ...]) -> None:
    os.environ.update(environment)
    gc.freeze()  # what was imported is not looked through again by every run
    with file.open("a") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1) for number in (1, 2))
    sys.exit(target(*args))
