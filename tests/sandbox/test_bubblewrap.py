"""What a program sees of the host, that nothing outlives the process that started it, and control groups.

Control groups are tried against folders that look like the kernel's, and for real where this process may divide its
own: `systemd-run --user --scope -p Delegate=yes pytest tests/sandbox/test_bubblewrap.py`.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from ebft.sandbox import box, bubblewrap
from ebft.sandbox.box import Sandbox
from ebft.sandbox.bubblewrap import BESIDE, PREFIX, PYTHON, Command, Group, Limits, divide, groups_home
from tests.sandbox.sandboxed import gone, needs_sandbox, processes_of, wait_for, why_no_sandbox

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
