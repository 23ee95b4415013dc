"""Programs that try to break out or to use the machine up; refusing to run without a sandbox."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from ebft.problems.problem import run_tests
from ebft.sandbox.command import Command, Limits, Streams
from ebft.sandbox.isolation import RunningCommand, Sandbox, SandboxError
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


@pytest.fixture(scope="module")
def background(request: pytest.FixtureRequest) -> Iterator[Background]:
    programs = PROBES | FLOODS
    os.environ["EBFT_CANARY"] = "CANARY"
    yield from in_background(request, lambda chosen: run_tests(ADD, programs[chosen["name"]], limits=SMALL))
    del os.environ["EBFT_CANARY"]


@needs_sandbox
@pytest.mark.parametrize("name", PROBES)
def test_probes_find_nothing_that_works(name: str, background: Background, request: pytest.FixtureRequest) -> None:
    outcome, _ = background[request.node.name].result()
    assert outcome.status in ("failed", "timeout"), outcome


@needs_sandbox
@pytest.mark.parametrize(
    "attempt",
    [
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
    """The probes are able to succeed."""
    program = PROBES["opens a socket"].replace("import socket\n    socket.socket()\n    ok = True", "{}")
    body = attempt.replace("\n", "\n    ")
    outcome = run_tests(ADD, program.format(body), limits=Limits(seconds=20.0))
    assert outcome.passed, outcome


@needs_sandbox
@pytest.mark.parametrize("name", FLOODS)
def test_floods_are_bounded(name: str, background: Background, request: pytest.FixtureRequest) -> None:
    outcome, seconds = background[request.node.name].result()
    assert outcome.status in ("failed", "timeout"), outcome
    assert seconds < SMALL.seconds + 5  # and the start of two sandboxes


@needs_sandbox
@pytest.mark.parametrize("files", [100, 498, 1100])
def test_whoever_scores_may_have_many_files_open(files: int) -> None:
    with many_files(files):
        right = run_tests(ADD, "    return a + b\n", limits=Limits(seconds=20.0))
        found = Sandbox().run(["ls", "/proc/self/fd"])
    assert right.passed, right
    assert found.stdout.split() == [b"0", b"1", b"2", b"3"]  # its streams and that folder: nothing of ours


class Marked(Sandbox):
    """Its processes can be told from those of tests that run at the same time."""

    MARKER = f"left-running-{os.getpid()}"

    def start(self, command: Command, streams: Streams, folder: str | None) -> RunningCommand:
        environment = {**command.environment, "MARKER": self.MARKER}
        return super().start(replace(command, environment=environment), streams, folder)


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
    kept += "def add(a, b):\n    return a + b"
    assert run_tests(ADD, kept, Marked(), Limits(seconds=20.0)).passed
    assert gone(Marked.MARKER)


def test_without_bubblewrap_it_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SandboxError, match=r"apt install bubblewrap.*--unsafe-exec"):
        Sandbox().check()
    with pytest.raises(SandboxError):
        run_tests(ADD, "    return a + b\n", Sandbox())


def test_a_bubblewrap_that_cannot_start_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo bubblewrap 0.8.0 && exit\necho no namespaces >&2\nexit 1\n'
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(SandboxError, match=r"cannot start here .no namespaces.*--unsafe-exec"):
        Sandbox().check()


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
def test_unsafe_runs_without_a_sandbox() -> None:
    unsafe = Sandbox(unsafe=True)
    assert run_tests(ADD, "    return a + b\n", unsafe, Limits(seconds=30)).passed
    assert run_tests(ADD, "    return a - b\n", unsafe, Limits(seconds=30)).status == "failed"
    assert run_tests(ADD, FLOODS["computes forever"], unsafe, Limits(seconds=1)).status == "timeout"
    assert run_tests(ADD, FORGERIES["equals everything"], unsafe, Limits(seconds=30)).status == "failed"
