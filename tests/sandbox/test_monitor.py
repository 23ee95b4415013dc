"""Programs that write or hold too much are ended."""

from __future__ import annotations

import os
import subprocess
import time

import pytest

from ebft.sandbox import monitor as monitor_module
from ebft.sandbox.command import Command, Limits, Streams
from ebft.sandbox.interpreter import start_of
from ebft.sandbox.isolation import Sandbox
from ebft.sandbox.monitor import Ending, monitor
from tests.sandbox.sandboxed import SMALL, needs_sandbox


@needs_sandbox
def test_output_is_bounded() -> None:
    finished = Sandbox().run(["sh", "-c", "yes"], limits=SMALL)
    assert finished.ending == "output"
    assert len(finished.stdout) <= SMALL.output_kib * 1024


@needs_sandbox
def test_all_processes_together_are_bounded() -> None:
    """Each stays below its own limit; the watcher adds them up."""
    grow = "import os, time\nfor _ in range(3):\n    os.fork()\nx = bytearray(b'x' * (100 << 20))\ntime.sleep(60)\n"
    finished = Sandbox().run(["/usr/bin/python3", "-c", grow], limits=Limits(seconds=30.0, memory_mib=256))
    if finished.returncode == 127:
        pytest.skip("no /usr/bin/python3 here")
    assert finished.ending == "memory"


def test_who_is_held_up_reads_once_more_before_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that was done in time is not late because whoever watches it was busy with another answer."""
    process = subprocess.Popen(["sh", "-c", "echo done"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.wait()

    def busy(roots: object) -> int:
        time.sleep(0.3)
        return 0

    monkeypatch.setattr(monitor_module, "MEMORY_EVERY", 0.0)
    monkeypatch.setattr(monitor_module, "memory_of", busy)
    with process.stdout:
        assert monitor([process], [process.stdout.fileno()], 0.1, 100, 100) == (Ending.EXITED, [b"done\n"])


def test_a_program_that_never_stops_writing_is_late_all_the_same() -> None:
    with subprocess.Popen(["yes"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        ending, _ = monitor([process], [process.stdout.fileno()], 0.2, 100, 10**6)
        process.kill()
    assert ending == Ending.TIMEOUT


# Memory of the kernel, which no resource limit counts: 20,000 empty files take about as many KiB, 200 pairs of sockets
# about 100 MiB once they are full.
KERNEL_MEMORY = {
    "files without content": "for n in range(20000):\n    open(f'/box/{n}', 'w').close()\n",
    "sockets": "import os, socket\nfor _ in range(3):\n    os.fork()\nx = [socket.socketpair() for _ in range(25)]\n",
}


@needs_sandbox
@pytest.mark.parametrize("kind", KERNEL_MEMORY)
def test_memory_of_the_kernel_counts(kind: str) -> None:
    code = f"import time\n{KERNEL_MEMORY[kind]}time.sleep(60)\n"
    command = Command([*start_of("-c"), code], Limits(seconds=30.0, memory_mib=64))
    result, report = os.pipe()
    started = Sandbox().start(command, Streams(stdout=report), None)
    try:
        os.close(report)
        ending, _ = monitor([started.process], [result], 30.0, 100 if kind == "sockets" else 24, 64)
    finally:
        started.end()
        os.close(result)
    assert ending == Ending.MEMORY
