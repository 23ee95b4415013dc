"""Deciding whether a program passes its tests, in such a way that the program has no say in it.

The tests and the program run in two processes, each in a sandbox of its own, joined by two pipes (`inside/`). The
program sees the arguments of each call and nothing else. What it returns crosses the process boundary as plain data;
the process with the tests compares, and alone reports the outcome to us.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ebft.sandbox.bubblewrap import sealed_file
from ebft.sandbox.command import Command, Limits, Streams
from ebft.sandbox.isolation import RunningCommand, Sandbox, monitor_commands
from ebft.sandbox.monitor import Ending
from ebft.sandbox.seccomp import RUNTIME

PASSED, FAILED, TIMEOUT, ERROR, SKIPPED = "passed", "failed", "timeout", "error", "skipped"
STATUSES = (PASSED, FAILED, TIMEOUT, ERROR, SKIPPED)


@dataclass(frozen=True)
class Outcome:
    """The result of one program: one of STATUSES, and a short line that says why."""

    status: str
    message: str = ""

    @property
    def passed(self) -> bool:
        return self.status == PASSED


@dataclass(frozen=True)
class IsolatedProcess:
    """One of the two processes: a command that is followed by the descriptors to read and to write, and its input."""

    command: tuple[str, ...]
    job: dict[str, Any] = field(default_factory=dict)
    folders: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    executable: bool = False
    calls: str = RUNTIME
    module: str = ""  # see `Command`


def run_isolated_tests(sandbox: Sandbox, tests: IsolatedProcess, program: IsolatedProcess, limits: Limits) -> Outcome:
    """Runs the tests against the program. Only what the process with the tests writes decides."""
    sandbox.check()
    to_program, from_tests = os.pipe()
    to_tests, from_program = os.pipe()
    result, report = os.pipe()
    opened = [to_program, from_tests, to_tests, from_program, result, report]
    for pipe in (to_program, to_tests):
        os.fchmod(pipe, 0o666)  # runtimes that know no numbers open them by name, as whatever user they are by then
    running: list[RunningCommand] = []
    with sandbox.host_folder() as folder:
        try:
            running.append(_start(sandbox, program, limits, (to_program, from_program), subprocess.DEVNULL, folder))
            running.append(_start(sandbox, tests, limits, (to_tests, from_tests), report, folder))
            for descriptor in (to_program, from_tests, to_tests, from_program, report):
                os.close(descriptor)
                opened.remove(descriptor)
            ending, [written] = monitor_commands(
                [running[1], running[0]], [result], limits.seconds, limits.memory_mib * 2, 64
            )
        finally:
            for started in running:
                started.end()
            for descriptor in opened:
                os.close(descriptor)
    return _outcome(ending, written, limits)


def _start(
    sandbox: Sandbox, process: IsolatedProcess, limits: Limits, pipes: tuple[int, int], report: int, folder: str | None
) -> RunningCommand:
    job = sealed_file(json.dumps(process.job).encode("ascii"))
    try:
        arguments = [*process.command, *map(str, pipes)]
        command = Command(
            arguments,
            limits,
            process.files,
            process.folders,
            dict(process.environment),
            process.executable,
            process.calls,
            process.module,
        )
        return sandbox.start(command, Streams(stdin=job, stdout=report, descriptors=pipes), folder)
    finally:
        os.close(job)


def _outcome(ending: str, written: bytes, limits: Limits) -> Outcome:
    if (exceeded := limit_exceeded(ending, limits)) is not None:
        return exceeded
    try:
        result = json.loads(written)
        status, message = result["status"], result["message"]
    except (ValueError, KeyError, TypeError):
        return Outcome(ERROR, "the process that runs the tests ended without a result")
    if status not in STATUSES or not isinstance(message, str):
        return Outcome(ERROR, "the process that runs the tests gave no result")
    return Outcome(status, one_line(message))


def limit_exceeded(ending: str, limits: Limits) -> Outcome | None:
    if ending == Ending.TIMEOUT:
        return Outcome(TIMEOUT, f"not finished after {limits.seconds:g} s")
    if ending == Ending.MEMORY:
        return Outcome(FAILED, f"held more than {limits.memory_mib} MiB of memory")
    return None


def one_line(message: str, longest: int = 300) -> str:
    """Printable, on one line, short: messages are partly written by the programs."""
    kept = " ".join("".join(c if c.isprintable() else " " for c in message[: 4 * longest]).split())
    return kept if len(kept) <= longest else kept[: longest - 1] + "…"
