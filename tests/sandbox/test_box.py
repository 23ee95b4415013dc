"""Python programs that try to pass without solving the problem, to break out, or to use the machine up."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ebft.problems.problem import Attempt, run_tests
from ebft.sandbox import box
from ebft.sandbox.box import RunningCommand, Sandbox, SandboxError, monitor
from ebft.sandbox.bubblewrap import PYTHON, Command, Limits
from ebft.sandbox.seccomp import NATIVE
from tests.sandbox.attacks.python import ADD, FLOODS, FORGERIES, PROBES, probe
from tests.sandbox.sandboxed import LONG, SMALL, gone, needs_sandbox, not_passed, processes_of, wait_for

RIGHT = "    return a + b\n"


@needs_sandbox
def test_attacks_do_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EBFT_CANARY", "CANARY")
    attacks, started = FORGERIES | PROBES | FLOODS, time.monotonic()
    found = not_passed([Attempt(ADD, code, name) for name, code in attacks.items()], SMALL)
    assert attacks.keys() == {name for name, outcome in found.items() if outcome.status in ("failed", "timeout")}
    assert time.monotonic() - started < len(attacks) * (SMALL.seconds + 1), "each ends in time"


@needs_sandbox
def test_probes_find_what_is_allowed() -> None:
    """The probes are able to succeed, and a right answer passes under such limits."""
    allowed = [
        "open('/box/mine', 'w').write('x')\nok = True",
        "import numpy\nok = True",
        "import asyncio\nasync def f(): return True\nok = asyncio.run(f())",
        "import threading\nt = threading.Thread(target=print)\nt.start()\nt.join()\nok = True",
        "import subprocess\nok = subprocess.run(['touch', '/box/written']).returncode == 0",
        # It runs in a child of the sandbox's first process, and finds a Python as if newly started.
        "import sys\nok = 'init' not in sys.modules and sys.argv == ['program.py'] and '/ebft' not in sys.path",
        "import signal as s\nok = s.getsignal(s.SIGPIPE) == s.getsignal(s.SIGXFSZ) == s.SIG_IGN",
        "import signal as s\nok = s.getsignal(s.SIGINT) is s.default_int_handler",
        "import os\nok = len(os.listdir('/proc/self/fd')) == 6 and bool(open('/proc/self/maps').read())",
    ]
    limits = replace(SMALL, seconds=30.0, memory_mib=1024)
    assert not_passed([Attempt(ADD, probe(attempt), attempt) for attempt in allowed], limits) == {}


@needs_sandbox
@pytest.mark.parametrize("files", [498, 1100])  # at `seccomp.PROGRAM`, and beyond the limit of `select`
def test_whoever_scores_may_have_many_files_open(files: int) -> None:
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= most < 2 * files:  # -1 stands for no limit
        pytest.skip("nobody may open that many files here")
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (limit, most))
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(limit, 2 * files), most))
        for _ in range(files):
            stack.enter_context(open("/dev/null"))
        assert run_tests(ADD, RIGHT, limits=LONG).passed
        found = Sandbox().run(Command(["ls", "/proc/self/fd"]))
        assert Sandbox().run(Command(["/usr/bin/env", "--version"], calls=NATIVE)).succeeded
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
        sleeper = pool.submit(run_tests, ADD, "    import time\n    time.sleep(99)\n", sandbox, Limits(seconds=99.0))
        # bubblewrap, the first process, the program
        assert wait_for(lambda: len(processes_of(Marked.MARKER)) >= 3), sleeper.done() and sleeper.result()
        sandbox.stop()
        sleeper.exception(timeout=30)  # there is one, or an outcome: that depends on how far it had come
    assert not run_tests(ADD, FLOODS["forks forever"], Marked(), SMALL).passed
    kept = "    import threading, time\n    threading.Thread(target=time.sleep, args=(99,)).start()\n"
    assert run_tests(ADD, kept + RIGHT, Marked(), LONG).passed
    assert gone(Marked.MARKER)


def test_where_bubblewrap_does_not_start_it_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho no namespaces >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(SandboxError, match=r"cannot start here .no names.*--unsafe-exec"):
        run_tests(ADD, RIGHT, Sandbox())


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
def test_unsafe_runs_without_a_sandbox() -> None:
    unsafe = Sandbox(unsafe=True)
    assert run_tests(ADD, RIGHT, unsafe, LONG).passed
    assert run_tests(ADD, FLOODS["computes forever"], unsafe, Limits(seconds=1)).status == "timeout"
    assert run_tests(ADD, FORGERIES["equals everything"], unsafe, LONG).status == "failed"


@needs_sandbox
@pytest.mark.parametrize(
    ("program", "memory", "expected"),
    [
        ("while True: print('y' * 99)", 64, "output"),
        # Each stays below its own limit; the monitor adds them up.
        ("import os\nfor _ in range(3): os.fork()\nx = b'x' * (40 << 20)", 128, "memory"),
        # Memory of the kernel, which no resource limit counts: 20,000 empty files take about as many KiB, 200 pairs of
        # sockets about 100 MiB once they are full.
        ("for n in range(20000): open(f'/box/{n}', 'w').close()", 24, "memory"),
        ("import os, socket\nfor _ in range(3): os.fork()\nx = [socket.socketpair() for _ in range(25)]", 96, "memory"),
    ],
)
def test_output_and_memory_are_bounded(program: str, memory: int, expected: str) -> None:
    command = Command([*PYTHON, "-c", f"{program}\nimport time\ntime.sleep(60)"], replace(LONG, memory_mib=64))
    finished = Sandbox().run(command, limits=Limits(30.0, memory, output_kib=64))
    assert finished.ending == expected
    assert len(finished.stdout) <= 64 * 1024


@pytest.mark.parametrize(
    ("command", "seconds", "busy", "ending", "output"),
    [
        # Done in time, and not late because whoever watches it was busy with another answer.
        ("echo done", 0.1, 0.3, "exited", b"done\n"),
        ("exec >&-; sleep 0.5", 30.0, 0.0, "exited", b""),
        ("exec >&-; exec sleep 60", 0.2, 0.0, "timeout", b""),
        ("exec yes", 0.2, 0.0, "timeout", b"y\ny\ny"),
    ],
)
def test_who_is_late(command: str, seconds: float, busy: float, ending: str, output: bytes, monkeypatch: Any) -> None:
    monkeypatch.setattr(box, "memory_of", lambda roots: bool(time.sleep(busy)))
    with subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        if busy:
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        limits, pipes = Limits(seconds, 100, output_kib=10**6), [process.stdout.fileno()]
        found, written = monitor([process], pipes, limits, threading.Event())
        assert (found, written[0][:5]) == (ending, output[:5])
        assert (process.poll() is None) == (ending == "timeout")
        process.kill()
