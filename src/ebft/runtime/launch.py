"""`--launch N` of `ebft train`, `sft` and `rlvr`: N processes on this machine, through torch's own launcher.

The same as `torchrun --standalone --nproc-per-node N -m ebft.cli train ...`, with shorter messages. When one process
ends with an error or is killed, the launcher ends the others; Ctrl-C reaches all of them.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import uuid
from collections.abc import Sequence

ENTRY: tuple[str, ...] = ("-m", "ebft.cli")  # what Python runs in every process
LAUNCHED = "EBFT_LAUNCHED"  # tells a process that somebody stands by to report its death


class ProcessKilled(RuntimeError):
    """A process was ended from outside; the message says which and how."""


def end_with_launcher() -> None:
    """Called in a process that was launched. Linux ends it when the launcher is killed, which can then end nobody."""
    if os.environ.get(LAUNCHED) and sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def launch(processes: int, command: str, arguments: Sequence[str]) -> int:
    """Run `ebft <command>` with these arguments in every process; returns the exit code of the first that failed."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # A share of the cores each; torch would otherwise start as many threads as there are cores, in every process.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    os.environ[LAUNCHED] = "1"
    for name in list(logging.root.manager.loggerDict):
        if name.startswith(("torch.distributed.elastic", "torch.distributed.launcher")):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # the processes say themselves what is wrong
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",  # any free port
        local_addr="localhost",
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(),
        shutdown_timeout=15,
    )
    try:
        elastic_launch(config, sys.executable)(*ENTRY, command, *arguments)
    except ChildFailedError as failed:
        for rank, failure in sorted(failed.failures.items()):
            # The launcher itself ends the rest with SIGTERM.
            if failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM:
                how = signal.Signals(-failure.exitcode).name
                hint = "; the machine may be out of memory" if how == "SIGKILL" else ""
                raise ProcessKilled(
                    f"process {rank} of {processes} was killed ({how}){hint}; the others were stopped"
                ) from None
        return failed.get_first_failure()[1].exitcode
    except SignalException as stopped:
        if stopped.sigval == signal.SIGINT:
            raise KeyboardInterrupt from None
        return 128 + int(stopped.sigval)
    return 0
