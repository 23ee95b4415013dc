"""Python programs that try to pass without solving the problem, to break out, or to use the machine up. What a program
sees of the host, that nothing outlives the process that started it, and control groups.

Control groups are tried against folders that look like the kernel's, and for real where this process may divide its
own: `systemd-run --user --scope -p Delegate=yes pytest tests/sandbox/test_bubblewrap.py`.
"""

import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ebft.problems.problem import Attempt, run_tests
from ebft.sandbox import box, bubblewrap
from ebft.sandbox.box import RunningCommand, Sandbox, SandboxError, monitor
from ebft.sandbox.bubblewrap import BESIDE, PREFIX, PYTHON, Command, Group, Limits, divide, groups_home
from ebft.sandbox.seccomp import NATIVE
from tests.sandbox.attacks.python import ADD, FLOODS, FORGERIES, PROBES, probe
from tests.sandbox.sandboxed import LONG, SMALL, gone, needs_sandbox, not_passed, processes_of, wait_for, why_no_sandbox

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


# ---- host and control groups -----------------------------------------------------------------------------------------


ROOT = Path(__file__).parents[2]


@needs_sandbox
def test_files_and_folder() -> None:
    script = "pwd; cat data; cat; echo 3 > own; cat own"
    finished = Sandbox().run(Command(["sh", "-c", script], files={"data": b"1\n"}, stdin=b"2\n"))
    assert (finished.succeeded, finished.stdout) == (True, b"/box\n1\n2\n3\n")
    files = {"program": Path(shutil.which("true") or "/bin/true").read_bytes()}
    assert Sandbox().run(Command(["/box/program"], files=files, executable=True)).returncode == 0
    assert Sandbox().run(Command(["cat", "/box/program"], files=files, executable=True)).stdout == b""


@needs_sandbox
@pytest.mark.parametrize("delay", [None, 0.0, 0.003, 0.006, 0.012, 0.025, 0.05])
def test_a_killed_parent_leaves_nothing_behind(delay: float | None) -> None:
    """Killed at various moments while the sandbox is being made; once the program runs (None), bubblewrap first."""
    marker, sandbox = f"sleep 1000.{os.getpid()}", Sandbox()
    sandbox.check()
    if (parent := os.fork()) == 0:
        sandbox.run(Command(["sh", "-c", f"{marker} & {marker}"], Limits(600.0), environment={"MARKER": marker}))
        os._exit(0)
    if delay is None:
        assert wait_for(lambda: len(processes_of(marker)) >= 5)
        [bubblewrap] = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        os.kill(int(bubblewrap), signal.SIGKILL)
    else:
        time.sleep(delay)
        os.kill(parent, signal.SIGKILL)
    assert gone(marker)
    assert (os.waitpid(parent, 0)[1] == 0) == (delay is None)


def test_as_another_user() -> None:
    """The same attacks as an ordinary user, who has the same number as his programs and cannot raise limits."""
    if (reason := why_no_sandbox()) is not None or os.geteuid() != 0:
        pytest.skip(reason or "needs root, to become somebody else")
    with tempfile.TemporaryDirectory() as place:  # not pytest's, which is for one user only
        copy = Path(place)
        copy.chmod(0o755)
        for part in ("src/ebft", "tests/sandbox", "tests/hard"):
            shutil.copytree(ROOT / part, copy / part)
        variables = {**os.environ, "PYTHONPATH": f"{copy}/src:{copy}"}

        def ask(*python: str, limits: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
            user = ["prlimit", "--core=0", *limits, "setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
            command = [*user, "/usr/bin/python3", "-B", *python]
            return subprocess.run(command, capture_output=True, text=True, cwd=copy, timeout=200, env=variables)

        check = ("-c", "import tests.hard.attacks, ebft.sandbox.box as box; box.Sandbox().check()")
        if (asked := ask(*check)).returncode:
            pytest.skip(f"another user cannot run this: {asked.stderr[-300:]}")
        limits = ("--nofile=200:200", "--nproc=1000:1000", "--fsize=100000:100000", "--as=4000000000", "--cpu=30")
        asked = ask(*check, limits=limits)
        assert asked.returncode == 0, asked.stderr
        asked = ask("-m", "tests.hard.attacks", "--python-only", "--honest=6", "--seconds=3", "--workers=4")
    assert asked.returncode == 0, asked.stdout + asked.stderr
    assert asked.stdout.startswith("as user 65534: ")


FILES = ("memory.max", "memory.swap.max", "memory.oom.group", "pids.max", "cgroup.kill")
GROUP_FILES = ("cgroup.controllers", "cgroup.subtree_control", "cgroup.procs")


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A group like the kernel's, whose new folders have their files at once, and are removed with them."""
    make = Path.mkdir

    def mkdir(path: Path, *arguments: Any, **options: Any) -> None:
        make(path, *arguments, **options)
        for name in FILES:
            (path / name).touch()

    monkeypatch.setattr(Path, "mkdir", mkdir)
    monkeypatch.setattr(Path, "rmdir", shutil.rmtree)
    for name, content in zip(GROUP_FILES, ("cpu memory pids", "", os.getpid()), strict=True):
        (tmp_path / name).write_text(f"{content}\n")
    return tmp_path


def test_the_limits_of_a_program(kernel: Path) -> None:
    group = Group(kernel, Limits(memory_mib=100, disk_mib=10, processes=7))
    assert [(group.path / name).read_text() for name in FILES] == [str((110 + BESIDE) * 2**20), "0", "1", "9", ""]
    said = subprocess.run(group.starting(["echo", "a  b"]), capture_output=True, text=True)
    assert (said.stdout, (group.path / "cgroup.procs").read_text()) == ("a  b\n", "0\n")
    for killed in (0, 2):
        (group.path / "memory.events").write_text(f"max 3\noom 1\noom_kill {killed}\n")
        assert group.ran_out_of_memory == (killed > 0)
    group.end()
    assert subprocess.run(group.starting(["echo", "no"]), capture_output=True).stdout == b"", "never outside of it"


@pytest.mark.parametrize("alone", [True, False])
def test_we_make_room_but_move_nobody_else(alone: bool, kernel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel refuses to limit groups inside one that has processes."""
    hand_down, refused = bubblewrap._hand_down, [OSError(errno.EBUSY, "busy")]

    def busy_once(group: Path) -> None:
        if refused:
            raise refused.pop()
        hand_down(group)

    monkeypatch.setattr(bubblewrap, "_hand_down", busy_once)
    if not alone:
        (kernel / "cgroup.procs").write_text(f"1\n{os.getpid()}\n")
    aside = kernel / f"{PREFIX}{os.getpid()}"
    assert divide(kernel) is alone
    assert aside.exists() is alone
    if alone:
        assert (aside / "cgroup.procs").read_text() == str(os.getpid())
        assert (kernel / "cgroup.subtree_control").read_text() == "+memory +pids"
    (kernel / "cgroup.controllers").write_text("hugetlb")
    assert not divide(kernel)


@needs_sandbox
def test_all_processes_together_are_bounded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For real. Each stays below its own limit, and the monitor sees nothing."""
    if (home := groups_home()) is None:
        pytest.skip("this process may not divide its control group")
    monkeypatch.setattr(box, "memory_of", lambda roots: 0)
    grow = "import os, time\nfor _ in range(3):\n    os.fork()\nx = bytearray(b'x' * (40 << 20))\ntime.sleep(60)\n"
    limits = Limits(seconds=60.0, memory_mib=64, disk_mib=1)
    assert Sandbox().run(Command([*PYTHON, "-c", "print(1)"], limits)).stdout == b"1\n"
    assert Sandbox().run(Command([*PYTHON, "-c", grow], limits)).ending == "memory"
    assert {path.name for path in home.glob(f"{PREFIX}*")} <= {f"{PREFIX}{os.getpid()}"}
