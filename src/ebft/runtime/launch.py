"""`--launch N`: N processes on this machine, through torch's own launcher, which ends the others when one ends with an
error. And what schedulers' signals (SIGTERM, SIGUSR1) do: the processes have all the time that these give them.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from ebft.errors import Preempted

NOTICES = (signal.SIGTERM, signal.SIGUSR1)  # what schedulers send before they take a machine away
PREEMPTED = 75  # sysexits' EX_TEMPFAIL: nothing is wrong, start it again
ENTRY: tuple[str, ...] = ("-m", "ebft.cli")  # what Python runs in every process
LAUNCHED = "EBFT_LAUNCHED"  # the process number of a launcher, which stands by to report the death of its processes


class ProcessKilled(RuntimeError):
    """A process was ended from outside; the message says which and how."""


def end_with_launcher() -> None:
    """Called by every command. Where one was launched, Linux ends it when its launcher is killed."""
    launcher = os.environ.get(LAUNCHED)
    if launcher and sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
        if os.getppid() != int(launcher):  # it was killed before this moment
            os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def on_notice(handler: Callable[[int, FrameType | None], None], numbers: Sequence[int] = NOTICES) -> Iterator[None]:
    """Have a handler for schedulers' signals, or others, where Python can: in the main thread."""
    in_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number in numbers if in_main}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def stop_at_once(number: int, frame: FrameType | None = None) -> NoReturn:
    """The handler of commands whose work is on disk at any moment."""
    raise Preempted(signal.Signals(number).name)


def _pass_on(number: int, frame: FrameType | None) -> None:
    """To the processes themselves, not to their groups, in which others load data for them."""
    children = [int(pid) for file in Path("/proc/self/task").glob("*/children") for pid in file.read_text().split()]
    if not children:
        stop_at_once(number)
    for pid in children:
        os.kill(pid, number)


def launch(processes: int, command: str, arguments: Sequence[str]) -> int:
    """Run `ebft <command>` with these arguments in every process; returns the exit code of the first that failed."""
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    os.environ[LAUNCHED] = str(os.getpid())
    # At a scheduler's notice torch would end the processes itself, and kill them after its timeout.
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGINT,SIGHUP,SIGQUIT"
    # A share of the cores each; torch would otherwise start as many threads as there are cores, in every process.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    for name in list(logging.root.manager.loggerDict):
        if name.startswith(("torch.distributed.elastic", "torch.distributed.launcher")):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # the processes say themselves what is wrong
    config = LaunchConfig(1, 1, processes, rdzv_backend="c10d", rdzv_endpoint="localhost:0", max_restarts=0)  # any port
    config.local_addr = "localhost"
    try:
        with on_notice(_pass_on):
            elastic_launch(config, sys.executable)(*ENTRY, command, *arguments)
    except ChildFailedError as failed:
        for rank, failure in sorted(failed.failures.items()):
            # The launcher itself ends the rest with SIGTERM.
            if failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM:
                how = signal.Signals(-failure.exitcode).name
                hint = "; the machine may be out of memory" if how == "SIGKILL" else ""
                said = f"process {rank} of {processes} was killed ({how}){hint}; the others were stopped"
                raise ProcessKilled(said) from None
        return failed.get_first_failure()[1].exitcode
    except SignalException as stopped:
        return 128 + int(stopped.sigval)
    return 0
