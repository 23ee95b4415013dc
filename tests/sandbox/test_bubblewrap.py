"""What a program sees of the host, that nothing outlives the process that started it, and control groups.

Control groups are tried against folders that look like the kernel's, and for real where this process may divide its
own: `systemd-run --user --scope -p Delegate=yes pytest tests/sandbox/test_bubblewrap.py`.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ebft.sandbox import box, control_groups
from ebft.sandbox.box import Sandbox
from ebft.sandbox.bubblewrap import PYTHON, Command, Limits, options
from ebft.sandbox.control_groups import BESIDE, PREFIX, Group, divide, own_group
from tests.sandbox.sandboxed import gone, needs_sandbox, processes_of, wait_for, why_no_sandbox

ROOT = Path(__file__).parents[2]


@needs_sandbox
def test_files_and_folder() -> None:
    files = {"data": b"1\n"}
    finished = Sandbox().run(
        Command(["sh", "-c", "pwd; cat data; cat; echo 3 > own; cat own"], files=files, stdin=b"2\n")
    )
    assert (finished.ending, finished.returncode) == ("exited", 0)
    assert finished.stdout == b"/box\n1\n2\n3\n"
    files = {"program": Path(shutil.which("true") or "/bin/true").read_bytes()}
    assert Sandbox().run(Command(["/box/program"], files=files, executable=True)).returncode == 0
    assert Sandbox().run(Command(["cat", "/box/program"], files=files, executable=True)).stdout == b""


def parent(marker: str, tmp_path: Path) -> subprocess.Popen[bytes]:
    """A process that starts a program in a sandbox and waits for it."""
    script = tmp_path / "parent.py"
    script.write_text(
        "from ebft.sandbox.box import Command, Limits, Sandbox\n"
        "sandbox = Sandbox()\n"
        "sandbox.check()\n"
        "print('starting', flush=True)\n"
        f"program = {['sh', '-c', f'{marker} & {marker}']!r}\n"
        f"sandbox.run(Command(program, Limits(seconds=600), environment={{'MARKER': {marker!r}}}))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    started = subprocess.Popen([sys.executable, str(script)], env=environment, stdout=subprocess.PIPE)
    assert started.stdout is not None
    assert started.stdout.readline() == b"starting\n"
    return started


@needs_sandbox
@pytest.mark.parametrize("delay", [None, 0.0, 0.002, 0.004, 0.006, 0.008, 0.010, 0.015, 0.020])
def test_a_killed_parent_leaves_nothing_behind(delay: float | None, tmp_path: Path) -> None:
    """Killed at various moments while the sandbox is being made; once the program runs (None), bubblewrap first.

    With --die-with-parent, bubblewrap left a process that waits forever, at the wrong moment."""
    marker = f"sleep 1000.{os.getpid()}"
    with parent(marker, tmp_path) as process:
        if delay is None:
            assert wait_for(lambda: len(processes_of(marker)) >= 5)
            [bubblewrap] = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            os.kill(int(bubblewrap), signal.SIGKILL)
            assert gone(marker)
            assert process.wait(20) == 0
        else:
            time.sleep(delay)
            process.kill()
            assert gone(marker)
    assert "die-with-parent" not in "".join(options(Command(["true"]), {}, 3, lambda content: 4))


@pytest.fixture(scope="module")
def another_user() -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Runs Python as an ordinary user, in a copy of the project that he may read, with commands before it."""
    if (reason := why_no_sandbox()) is not None:
        pytest.skip(reason)
    if os.geteuid() != 0:
        pytest.skip("needs root, to become somebody else")
    if not Path("/usr/bin/python3").exists():
        pytest.skip("needs a python that other users may run")
    with tempfile.TemporaryDirectory() as place:  # not pytest's, which is for one user only
        copy = Path(place)
        copy.chmod(0o755)
        for part in ("src/ebft", "tests/sandbox", "tests/__init__.py"):
            source = ROOT / part
            (copy / part).parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(source, copy / part) if source.is_dir() else shutil.copy(source, copy / part)

        def run(arguments: list[str], before: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
            user = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
            command = [*before, *user, "/usr/bin/python3", "-B", *arguments]
            variables = {**os.environ, "PYTHONPATH": f"{copy}/src:{copy}"}
            return subprocess.run(command, capture_output=True, text=True, cwd=copy, timeout=200, env=variables)

        yield run


@pytest.mark.parametrize("limit", ["nofile=200", "nproc=1000", "fsize=100000", "as=4000000000", "cpu=30"])
def test_limits_that_an_ordinary_user_cannot_raise(another_user: Any, limit: str) -> None:
    check = ["-c", "from ebft.sandbox.box import Sandbox; Sandbox().check()"]
    if another_user(check).returncode:
        pytest.skip("another user cannot run this")
    name, value = limit.split("=")
    asked = another_user(check, ["prlimit", f"--{name}={value}:{value}"])
    assert asked.returncode == 0, asked.stderr


def test_as_another_user(another_user: Any) -> None:
    """The same probes as an ordinary user, who has the same number as his programs."""
    asked = another_user([str(Path("tests", "sandbox", "as_another_user.py"))])
    if asked.stderr.startswith(("too old", "refused", "setpriv")):
        pytest.skip(f"another user cannot run this: {asked.stderr[-300:]}")
    assert asked.returncode == 0, asked.stderr
    found = json.loads(asked.stdout)
    assert found["user"] == 65534
    assert found["outcomes"].pop("right") == "passed"
    assert {name: status for name, status in found["outcomes"].items() if status not in ("failed", "timeout")} == {}


# ---- Control groups --------------------------------------------------------------------------------------------------

FILES = ("memory.max", "memory.swap.max", "memory.oom.group", "pids.max", "cgroup.procs", "cgroup.kill")
GROUP_FILES = ("cgroup.controllers", "cgroup.subtree_control", "cgroup.procs")


@pytest.fixture
def like_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new folder has its files at once, and is removed with them."""
    make, remove = Path.mkdir, Path.rmdir

    def mkdir(path: Path, *arguments: Any, **options: Any) -> None:
        make(path, *arguments, **options)
        for name in FILES if path.name.startswith(PREFIX) else ():
            (path / name).touch()

    def rmdir(path: Path) -> None:
        for file in path.iterdir() if path.name.startswith(PREFIX) else ():
            file.unlink()
        remove(path)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    monkeypatch.setattr(Path, "rmdir", rmdir)


def ours(folder: Path, controllers: str = "cpu memory pids", processes: str = str(os.getpid())) -> Path:
    for name, content in zip(GROUP_FILES, (controllers, "", processes), strict=True):
        (folder / name).write_text(f"{content}\n")
    return folder


@pytest.mark.usefixtures("like_the_kernel")
def test_the_limits_of_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(tmp_path, Limits(memory_mib=100, disk_mib=10, processes=7))
    group.add(1234)
    found = [(group.path / name).read_text() for name in FILES]
    assert found == [str((110 + BESIDE) * 2**20), "0", "1", "8", "1234", ""]
    (group.path / "memory.events").write_text("max 3\noom 1\noom_kill 0\n")
    assert not group.ran_out_of_memory
    (group.path / "memory.events").write_text("max 3\noom 1\noom_kill 2\n")
    assert group.ran_out_of_memory
    group.end()
    monkeypatch.setattr(Group, "_write", lambda group, name, value: os.open("/nonexistent", os.O_RDONLY))
    with pytest.raises(FileNotFoundError):
        Group(tmp_path, Limits())
    assert list(tmp_path.iterdir()) == [], "a group that cannot be limited is not left behind"


@pytest.mark.usefixtures("like_the_kernel")
@pytest.mark.parametrize("alone", [True, False])
def test_we_make_room_but_move_nobody_else(alone: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel refuses to limit groups inside one that has processes."""
    hand_down, refused = control_groups._hand_down, [OSError(errno.EBUSY, "busy")]

    def busy_once(group: Path) -> None:
        if refused:
            raise refused.pop()
        hand_down(group)

    monkeypatch.setattr(control_groups, "_hand_down", busy_once)
    aside = tmp_path / f"{PREFIX}{os.getpid()}"
    assert divide(ours(tmp_path, processes=str(os.getpid()) if alone else f"1\n{os.getpid()}")) is alone
    assert aside.exists() is alone
    if alone:
        assert (aside / "cgroup.procs").read_text() == str(os.getpid())
        assert (tmp_path / "cgroup.subtree_control").read_text() == "+memory +pids"
    assert not divide(tmp_path / "missing")
    assert not divide(ours(tmp_path, controllers="hugetlb"))


def test_which_group_is_ours(tmp_path: Path) -> None:
    file, found = tmp_path / "cgroup", []
    for groups in ("0::/a/b.scope", "4:memory:/x\n0::/", "0::/../elsewhere", "4:memory:/x"):
        file.write_text(groups)
        found.append(own_group(file))
    assert found == [Path("/sys/fs/cgroup/a/b.scope"), Path("/sys/fs/cgroup"), None, None]


@pytest.fixture
def home() -> Iterator[Path]:
    """For real."""
    found = control_groups.groups_home()
    if found is None:
        pytest.skip("this process may not divide its control group")
    yield found
    assert {path.name for path in found.glob(f"{PREFIX}*")} <= {f"{PREFIX}{os.getpid()}"}


@needs_sandbox
def test_all_processes_together_are_bounded_at_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stays below its own limit, and the monitor sees nothing."""
    monkeypatch.setattr(box, "memory_of", lambda roots: 0)
    grow = "import os, time\nfor _ in range(3):\n    os.fork()\nx = bytearray(b'x' * (40 << 20))\ntime.sleep(60)\n"
    limits = Limits(seconds=60.0, memory_mib=64, disk_mib=1)
    assert Sandbox().run(Command([*PYTHON, "-c", "print(1)"], limits)).stdout == b"1\n"
    assert Sandbox().run(Command([*PYTHON, "-c", grow], limits)).ending == "memory"


@needs_sandbox
def test_a_group_counts_processes_and_ends_what_is_in_it(home: Path) -> None:
    group = Group(home, Limits(processes=2))
    fork = f"import os; open({str(group.path / 'cgroup.procs')!r}, 'w').write('0'); [os.fork() for _ in range(9)]"
    failed = subprocess.run([sys.executable, "-c", fork], capture_output=True, text=True)
    assert "BlockingIOError" in failed.stderr
    process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    group.add(process.pid)
    group.end()
    assert process.wait(20) == -9
    assert not group.path.exists()
