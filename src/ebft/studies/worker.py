"""Jobs one after the other in one process (`--reuse-processes`): what is imported and compiled stays for the next.

A run of a small model may be over sooner than torch is imported and its layers are compiled. Such a process reads jobs
from standard input, a line of JSON each, runs them as `ebft` does, with everything that they print in their logs, and
answers with their exit codes.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

from ebft.runtime.descriptors import readable_within
from ebft.runtime.launch import PREEMPTED, end_with_launcher

# What Python runs. The command line is given to `serve` from above, where it belongs.
_ENTRY = ("-c", "import sys; from ebft import cli; from ebft.studies import worker; sys.exit(worker.serve(cli.main))")
_INTERRUPTED = 128 + signal.SIGINT


class Worker:
    """Such a process, from outside. While a job runs, it looks like the process of that job."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *_ENTRY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C is passed on once, by the launcher
        )
        self.returncode: int | None = None

    def begin(self, arguments: list[str], log: Path) -> None:
        assert self.process.stdin is not None
        self.returncode = None
        self.process.stdin.write(json.dumps({"arguments": arguments, "log": str(log)}).encode() + b"\n")
        self.process.stdin.flush()

    def poll(self) -> int | None:
        """The job's exit code, once it has ended; the process's, if it did not survive the job."""
        answers = self.process.stdout
        assert answers is not None
        if self.returncode is None and readable_within(answers.fileno(), 0):
            line = answers.readline()
            self.returncode = int(line) if line else self.process.wait()
        return self.returncode

    def send_signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """After a signal: a process whose job was stopped ends with it."""
        return self.process.wait()

    def terminate(self) -> None:
        self.process.terminate()

    def dismiss(self) -> None:
        """There are no more jobs."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def serve(ebft: Callable[[list[str]], int]) -> int:
    """Inside such a process. ebft: runs a command line, returns its exit code."""
    end_with_launcher()
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        job = json.loads(line)
        with open(job["log"], "ab") as log:  # for the whole process: libraries print past sys.stdout
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        code = _run(ebft, job["arguments"])
        sys.stdout.flush()
        sys.stderr.flush()
        if code in (_INTERRUPTED, PREEMPTED):
            return code
        print(code, file=answers, flush=True)
    return 0


def _run(ebft: Callable[[list[str]], int], arguments: list[str]) -> int:
    try:
        return ebft(arguments)
    except SystemExit as end:  # of a parser
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception:
        traceback.print_exc()
        return 1
    finally:
        gc.collect()
        if (torch := sys.modules.get("torch")) is not None and torch.cuda.is_available():
            torch.cuda.empty_cache()
