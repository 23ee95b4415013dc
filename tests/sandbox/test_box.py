"""Python programs that try to pass without solving the problem, to break out, or to use the machine up."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ebft.problems.problem import run_tests
from ebft.sandbox import box
from ebft.sandbox.box import Ending, RunningCommand, Sandbox, SandboxError, monitor
from ebft.sandbox.bubblewrap import PYTHON, Command, Limits
from tests.sandbox.attacks.python import FLOODS, FORGERIES, PROBES
from tests.sandbox.sandboxed import (
    ADD,
    SMALL,
    Background,
    gone,
    in_background,
    many_files,
    needs_sandbox,
    processes_of,
    wait_for,
)

LONG = Limits(seconds=30.0)
RIGHT = "    return a + b\n"


@pytest.fixture(scope="module")
def background(request: pytest.FixtureRequest) -> Iterator[Background]:
    programs = FORGERIES | PROBES | FLOODS
    os.environ["EBFT_CANARY"] = "CANARY"
    yield from in_background(request, lambda chosen: run_tests(ADD, programs[chosen["name"]], limits=SMALL))
    del os.environ["EBFT_CANARY"]


@needs_sandbox
@pytest.mark.parametrize("name", [*FORGERIES, *PROBES, *FLOODS])
def test_attacks_do_not_pass(name: str, background: Background, request: pytest.FixtureRequest) -> None:
    outcome, seconds = background[request.node.name].result()
    assert outcome.status in ("failed", "timeout"), outcome
    if name in FLOODS:
        assert seconds < SMALL.seconds + 5  # and the start of two sandboxes


@needs_sandbox
@pytest.mark.parametrize(
    "attempt",
    [
        "ok = True",
        "import os\nos.environ['HOME']\nok = True",
        "open('/box/mine', 'w').write('x')\nok = True",
        "import numpy\nok = True",
        "import asyncio\nasync def f(): return True\nok = asyncio.run(f())",
        "import threading\nt = threading.Thread(target=print)\nt.start()\nt.join()\nok = True",
        "import subprocess\nok = subprocess.run(['/usr/bin/env', 'true']).returncode == 0",
        # It runs in a child of the sandbox's first process, and finds a Python as if newly started.
        "import sys\nok = 'init' not in sys.modules and sys.argv == ['program.py'] and '/ebft' not in sys.path",
        "import signal as s\nok = s.getsignal(s.SIGPIPE) == s.getsignal(s.SIGXFSZ) == s.SIG_IGN",
        "import signal as s\nok = s.getsignal(s.SIGINT) is s.default_int_handler",
        "import os\nok = len(os.listdir('/proc/self/fd')) == 6 and bool(open('/proc/self/maps').read())",
    ],
)
def test_probes_find_what_is_allowed(attempt: str) -> None:
    """The probes are able to succeed, and a right answer passes under such limits."""
    program = PROBES["opens a socket"].replace("import socket\n    socket.socket()\n    ok = True", "{}")
    outcome = run_tests(
        ADD, program.format(attempt.replace("\n", "\n    ")), limits=replace(SMALL, seconds=30.0, memory_mib=1024)
    )
    assert outcome.passed, outcome


@needs_sandbox
@pytest.mark.parametrize("files", [100, 498, 1100])  # beyond the program's limit, and that of `select`
def test_whoever_scores_may_have_many_files_open(files: int) -> None:
    with many_files(files):
        right = run_tests(ADD, RIGHT, limits=LONG)
        found = Sandbox().run(Command(["ls", "/proc/self/fd"]))
    assert right.passed, right
    assert found.stdout.split() == [b"0", b"1", b"2", b"3"]  # its streams and that folder: nothing of ours


class Marked(Sandbox):
    """Its processes can be told from those of tests that run at the same time."""

    MARKER = f"left-running-{os.getpid()}"

    def start(self, command: Command, *arguments: Any, **options: Any) -> RunningCommand:
        environment = {**command.environment, "MARKER": self.MARKER}
        return super().start(replace(command, environment=environment), *arguments, **options)


@needs_sandbox
def test_nothing_is_left_running() -> None:
    """After a sandbox that was stopped, a fork bomb, and an answer that leaves threads behind."""
    sandbox = Marked()
    with ThreadPoolExecutor(1) as pool:
        sleeper = pool.submit(run_tests, ADD, "import time\ntime.sleep(99)", sandbox, Limits(seconds=99.0))
        assert wait_for(lambda: len(processes_of(Marked.MARKER)) >= 3)  # bubblewrap, the first process, the program
        sandbox.stop()
        sleeper.exception(timeout=30)  # there is one, or an outcome: that depends on how far it had come
    assert not run_tests(ADD, FLOODS["forks forever"], Marked(), SMALL).passed
    kept = "import threading, time\nthreading.Thread(target=time.sleep, args=(99,)).start()\n"
    assert run_tests(ADD, f"{kept}def add(a, b):\n{RIGHT}", Marked(), LONG).passed
    assert gone(Marked.MARKER)


def test_without_bubblewrap_it_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho no namespaces >&2\nexit 1\n")
    fake.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        with pytest.raises(SandboxError, match=r"cannot start here .no namespaces.*--unsafe-exec"):
            Sandbox().check()
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SandboxError, match=r"apt install bubblewrap.*--unsafe-exec"):
        run_tests(ADD, RIGHT, Sandbox())


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
def test_unsafe_runs_without_a_sandbox() -> None:
    unsafe = Sandbox(unsafe=True)
    assert run_tests(ADD, RIGHT, unsafe, LONG).passed
    assert run_tests(ADD, FLOODS["computes forever"], unsafe, Limits(seconds=1)).status == "timeout"
    assert run_tests(ADD, FORGERIES["equals everything"], unsafe, LONG).status == "failed"


# ---- The monitor -----------------------------------------------------------------------------------------------------


@needs_sandbox
def test_output_and_memory_are_bounded() -> None:
    finished = Sandbox().run(Command(["sh", "-c", "yes"], SMALL))
    assert finished.ending == Ending.OUTPUT
    assert len(finished.stdout) <= SMALL.output_kib * 1024
    # Each stays below its own limit; the monitor adds them up.
    grow = "import os, time\nfor _ in range(3):\n    os.fork()\nx = bytearray(b'x' * (100 << 20))\ntime.sleep(60)\n"
    limits = Limits(seconds=30.0, memory_mib=256)
    assert Sandbox().run(Command([*PYTHON, "-c", grow], limits)).ending == Ending.MEMORY


@pytest.mark.parametrize(
    ("command", "seconds", "busy", "expected"),
    [
        # Done in time, and not late because whoever watches it was busy with another answer.
        ("echo done", 0.1, 0.3, (Ending.EXITED, [b"done\n"])),
        ("exec >&-; sleep 0.5", 30.0, 0.0, (Ending.EXITED, [b""])),  # closing the pipe is not the end
        ("exec >&-; exec sleep 60", 0.2, 0.0, (Ending.TIMEOUT, [b""])),
    ],
)
def test_who_is_late(command: str, seconds: float, busy: float, expected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(box, "MEMORY_EVERY", 0.0)
    monkeypatch.setattr(box, "memory_of", lambda roots: bool(time.sleep(busy)))
    with subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        if busy:
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert monitor([process], [process.stdout.fileno()], Limits(seconds, 100, output_kib=100)) == expected
        assert (process.poll() is None) == (expected[0] == Ending.TIMEOUT)
        process.kill()


def test_a_program_that_never_stops_writing_is_late_all_the_same() -> None:
    with subprocess.Popen(["yes"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        ending, _ = monitor([process], [process.stdout.fileno()], Limits(0.2, 100, output_kib=10**6))
        process.kill()
    assert ending == Ending.TIMEOUT


# Memory of the kernel, which no resource limit counts: 20,000 empty files take about as many KiB, 200 pairs of sockets
# about 100 MiB once they are full.
@needs_sandbox
@pytest.mark.parametrize(
    ("make", "limit"),
    [
        ("for n in range(20000):\n    open(f'/box/{n}', 'w').close()\n", 24),
        ("import os, socket\nfor _ in range(3):\n    os.fork()\nx = [socket.socketpair() for _ in range(25)]\n", 100),
    ],
)
def test_memory_of_the_kernel_counts(make: str, limit: int) -> None:
    command = Command([*PYTHON, "-c", f"import time\n{make}time.sleep(60)\n"], replace(LONG, memory_mib=64))
    assert Sandbox().run(command, limits=Limits(30.0, limit, output_kib=64)).ending == Ending.MEMORY
