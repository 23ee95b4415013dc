"""Programs that try to break out, to use the machine up or to pass without solving the problem."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ebft.problems.code import Attempt, run_many, run_tests
from ebft.sandbox import isolation as sandbox_module
from ebft.sandbox import seccomp
from ebft.sandbox.isolation import Limits, Sandbox, SandboxError
from tests.sandbox.attacks.python import FLOODS, FORGERIES, PROBES
from tests.sandbox.sandboxed import ADD, Background, in_background, needs_sandbox

SMALL = Limits(seconds=1.5, memory_mib=256, processes=16, disk_mib=16, output_kib=64)


@needs_sandbox
def test_a_right_answer_passes_under_the_same_limits() -> None:
    """Without this, the tests below could pass because nothing ever does."""
    outcome = run_tests(ADD, "    return a + b\n", limits=Limits(**{**vars(SMALL), "seconds": 20.0}))
    assert outcome.passed, outcome


@pytest.fixture(scope="module")
def background(request: pytest.FixtureRequest) -> Iterator[Background]:
    programs = FORGERIES | PROBES | FLOODS
    os.environ["EBFT_CANARY"] = "CANARY"
    yield from in_background(request, lambda chosen: run_tests(ADD, programs[chosen["name"]], limits=SMALL))
    del os.environ["EBFT_CANARY"]


@needs_sandbox
@pytest.mark.parametrize("name", FORGERIES)
def test_forgeries_do_not_pass(name: str, background: Background, request: pytest.FixtureRequest) -> None:
    outcome, _ = background[request.node.name].result()
    assert outcome.status in ("failed", "timeout"), outcome


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
def test_nothing_is_left_running() -> None:
    """After a fork bomb and after an answer that leaves threads behind."""
    run_tests(ADD, FLOODS["forks forever"], limits=SMALL)
    kept = "import threading, time\nthreading.Thread(target=time.sleep, args=(99,)).start()\n"
    kept += "def add(a, b):\n    return a + b"
    assert run_tests(ADD, kept, limits=Limits(seconds=20.0)).passed
    assert _gone("candidate.py")


@needs_sandbox
@pytest.mark.parametrize("delay", [None, 0.0, 0.002, 0.004, 0.006, 0.008, 0.010, 0.015, 0.020])
def test_a_killed_parent_leaves_nothing_behind(delay: float | None, tmp_path: Path) -> None:
    """Killed once the program runs (None), and at various moments while its sandbox is being made."""
    marker = f"sleep 1000.{os.getpid()}"
    script = tmp_path / "parent.py"
    script.write_text(
        "import sys\n"
        "from ebft.evaluate.sandbox import Limits, Sandbox\n"
        "sandbox = Sandbox()\n"
        "sandbox.check()\n"
        "print('starting', flush=True)\n"
        f"sandbox.run({['sh', '-c', f'{marker} & {marker}']!r}, limits=Limits(seconds=600))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen([sys.executable, str(script)], env=environment, stdout=subprocess.PIPE)
    try:
        assert parent.stdout is not None
        parent.stdout.readline()
        if delay is None:
            assert _wait_for(lambda: len(_processes(marker)) >= 5)
        else:
            time.sleep(delay)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        assert _gone(marker)
    finally:
        parent.kill()
        parent.communicate()


def _processes(marker: str) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                command = Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if marker in command:
                found.append(int(entry))
    return found


def _wait_for(condition: object, seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():  # type: ignore[operator]
            return True
        time.sleep(0.02)
    return False


def _gone(marker: str) -> bool:
    return _wait_for(lambda: not _processes(marker))


@needs_sandbox
def test_output_is_bounded() -> None:
    finished = Sandbox().run(["sh", "-c", "yes"], limits=SMALL)
    assert finished.ending == "output"
    assert len(finished.stdout) <= SMALL.output_kib * 1024


@needs_sandbox
def test_files_and_folder() -> None:
    finished = Sandbox().run(["sh", "-c", "pwd; cat data; echo more > own; cat own"], {"data": b"given\n"})
    assert (finished.ending, finished.returncode) == ("exited", 0)
    assert finished.stdout == b"/box\ngiven\nmore\n"


@needs_sandbox
def test_executables_cannot_be_read() -> None:
    program = Path(shutil.which("true") or "/bin/true").read_bytes()
    assert Sandbox().run(["/box/program"], {"program": program}, executable=True).returncode == 0
    assert Sandbox().run(["cat", "/box/program"], {"program": program}, executable=True).stdout == b""


@needs_sandbox
def test_all_processes_together_are_bounded() -> None:
    """Each stays below its own limit; the watcher adds them up."""
    grow = "import os, time\nfor _ in range(3):\n    os.fork()\nx = bytearray(b'x' * (100 << 20))\ntime.sleep(60)\n"
    finished = Sandbox().run(["/usr/bin/python3", "-c", grow], limits=Limits(seconds=30.0, memory_mib=256))
    if finished.returncode == 127:
        pytest.skip("no /usr/bin/python3 here")
    assert finished.ending == "memory"


@needs_sandbox
def test_many_at_a_time() -> None:
    attempts = [Attempt(ADD, "    return a + b\n" if n % 2 else "    return a - b\n", n) for n in range(8)]
    outcomes = run_many(attempts, limits=Limits(seconds=30), workers=2)
    found = {attempt.tag: outcome.passed for attempt, outcome in outcomes}
    assert found == {n: bool(n % 2) for n in range(8)}


@needs_sandbox
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
@pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="needs a python that other users may run")
def test_as_another_user(tmp_path: Path) -> None:
    """Without root, user namespaces do the same; where they are switched off, the sandbox refuses."""
    package = Path(sandbox_module.__file__).parents[2]
    code = (
        f"import sys; sys.path.insert(0, {str(package)!r})\n"
        "if sys.version_info < (3, 11): print('too old'); raise SystemExit\n"
        "try:\n"
        "    from ebft.evaluate.sandbox import Limits, Sandbox, SandboxError\n"
        "except ImportError: print('unreadable'); raise SystemExit\n"
        "try: Sandbox().check()\n"
        "except SandboxError as error: print('refused', error); raise SystemExit\n"
        "fork = 'import os,time,sys\\nn=0\\nwhile n<200:\\n  try:\\n    if os.fork()==0: time.sleep(9); os._exit(0)\\n"
        '  except OSError: break\\n  n+=1\\nprint(n, os.access("/etc/passwd", 4), flush=True)\\nos._exit(0)\'\n'
        "print(Sandbox().run(['/usr/bin/python3', '-c', fork], limits=Limits(processes=16)).stdout.decode())\n"
    )
    asked = subprocess.run(
        ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "/usr/bin/python3", "-B", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )
    if asked.stdout.startswith(("too old", "unreadable", "refused")) or asked.returncode:
        pytest.skip(f"another user cannot run this: {asked.stdout}{asked.stderr[-200:]}")
    children, sees_users = asked.stdout.split()
    assert int(children) < 16
    assert sees_users == "False"


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


def test_the_filter_knows_two_architectures() -> None:
    for machine in ("x86_64", "aarch64"):
        rules = seccomp.compile_filter(machine)
        assert rules is not None
        assert len(rules) % 8 == 0
        assert len(rules) // 8 < 4096  # the kernel's limit
    assert seccomp.compile_filter("riscv64") is None


def test_the_filter_does_what_it_says() -> None:
    """The kernel's little machine, simulated."""
    import errno
    import struct

    def verdict(number: int, arguments: tuple[int, int] = (0, 0), machine: str = "x86_64") -> int:
        _, architecture = seccomp.ARCHITECTURES[machine]
        rules = seccomp.compile_filter(machine)
        assert rules is not None
        data = struct.pack("=IIQQQ", number, architecture, 0, *arguments)
        at, value = 0, 0
        while True:
            code, if_true, if_false, k = struct.unpack_from("=HBBI", rules, at * 8)
            at += 1
            if code == 0x20:
                [value] = struct.unpack_from("=I", data, k)
            elif code == 0x06:
                return k
            else:
                holds = {0x15: value == k, 0x35: value >= k, 0x45: bool(value & k)}[code]
                at += if_true if holds else if_false

    allowed, refused = 0x7FFF0000, 0x00050000 | errno.EPERM
    for machine, column in (("x86_64", 0), ("aarch64", 1)):
        for name, numbers in seccomp.REFUSED.items():
            if (number := numbers[column]) is not None:
                assert verdict(number, machine=machine) == refused, name
        clone, ioctl = seccomp.CLONE[column], seccomp.IOCTL[column]
        assert verdict(clone, (0x01200011, 0), machine) == allowed  # what fork asks for
        assert verdict(clone, (0x10000000, 0), machine) == refused
        assert verdict(ioctl, (0, 0x5401), machine) == allowed
        assert verdict(ioctl, (0, seccomp.TIOCSTI), machine) == refused
        assert verdict(seccomp.CLONE3[column], machine=machine) == 0x00050000 | errno.ENOSYS
    for harmless in (0, 1, 2, 3, 9, 57, 59, 231):  # read, write, open, close, mmap, fork, execve, exit_group
        assert verdict(harmless) == allowed
    assert verdict(0x40000000 + 101) == 0x00050000 | errno.ENOSYS  # ptrace by its other number
