"""Control groups: against folders that look like the kernel's, and for real where this process may divide its own.

To run the real ones: `systemd-run --user --scope -p Delegate=yes pytest tests/sandbox/test_cgroups.py`.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ebft.sandbox import cgroups, monitor
from ebft.sandbox.cgroups import BESIDE, Group, divide, own_group
from ebft.sandbox.command import Limits
from ebft.sandbox.interpreter import start_of
from ebft.sandbox.isolation import Sandbox
from tests.sandbox.sandboxed import needs_sandbox

FILES = ("memory.max", "memory.swap.max", "memory.oom.group", "pids.max", "cgroup.procs", "cgroup.kill")
GROUP_FILES = ("cgroup.controllers", "cgroup.subtree_control", "cgroup.procs")


@pytest.fixture
def like_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new folder has its files at once, and is removed with them."""
    make, remove = Path.mkdir, Path.rmdir

    def mkdir(path: Path, *arguments: Any, **options: Any) -> None:
        make(path, *arguments, **options)
        for name in FILES if path.name.startswith(cgroups.PREFIX) else ():
            (path / name).touch()

    def rmdir(path: Path) -> None:
        for file in path.iterdir() if path.name.startswith(cgroups.PREFIX) else ():
            file.unlink()
        remove(path)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    monkeypatch.setattr(Path, "rmdir", rmdir)


def ours(folder: Path, controllers: str = "cpu memory pids", processes: str = str(os.getpid())) -> Path:
    for name, content in zip(GROUP_FILES, (controllers, "", processes), strict=True):
        (folder / name).write_text(f"{content}\n")
    return folder


@pytest.mark.usefixtures("like_the_kernel")
def test_the_limits_of_a_program(tmp_path: Path) -> None:
    group = Group(tmp_path, Limits(memory_mib=100, disk_mib=10, processes=7))
    group.add(1234)
    found = {name: (group.path / name).read_text() for name in FILES}
    assert found == {
        "memory.max": str((110 + BESIDE) * 2**20),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "pids.max": "8",
        "cgroup.procs": "1234",
        "cgroup.kill": "",
    }
    assert not group.ran_out_of_memory
    (group.path / "memory.events").write_text("low 0\nmax 3\noom 1\noom_kill 2\n")
    assert group.ran_out_of_memory
    group.end()
    assert not group.path.exists()


@pytest.mark.usefixtures("like_the_kernel")
def test_a_group_that_cannot_be_limited_is_not_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "FILES", ("memory.max",))
    with pytest.raises(FileNotFoundError):
        Group(tmp_path, Limits())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("like_the_kernel")
def test_a_group_that_is_ours_is_divided(tmp_path: Path) -> None:
    assert divide(ours(tmp_path))
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+memory +pids"
    assert {file.name for file in tmp_path.iterdir()} == set(GROUP_FILES)


@pytest.mark.usefixtures("like_the_kernel")
@pytest.mark.parametrize("alone", [True, False])
def test_we_make_room_but_move_nobody_else(alone: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel refuses to limit groups inside one that has processes."""
    hand_down, refused = cgroups._hand_down, [OSError(errno.EBUSY, "busy")]

    def busy_once(group: Path) -> None:
        if refused:
            raise refused.pop()
        hand_down(group)

    monkeypatch.setattr(cgroups, "_hand_down", busy_once)
    aside = tmp_path / f"{cgroups.PREFIX}{os.getpid()}"
    assert divide(ours(tmp_path, processes=str(os.getpid()) if alone else f"1\n{os.getpid()}")) is alone
    assert aside.exists() is alone
    assert not alone or (aside / "cgroup.procs").read_text() == str(os.getpid())


def test_not_ours(tmp_path: Path) -> None:
    assert not divide(tmp_path / "missing")
    assert not divide(ours(tmp_path, controllers="hugetlb"))


@pytest.mark.parametrize(
    ("groups", "mounts", "expected"),
    [
        ("0::/a/b.scope", "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw", "/sys/fs/cgroup/a/b.scope"),
        ("0::/", "30 24 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw", "/sys/fs/cgroup"),
        ("4:memory:/x\n0::/job/5", "30 24 0:26 /job /cg rw - cgroup2 cgroup2 rw", "/cg/5"),
        ("0::/../elsewhere", "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw", None),
        ("4:memory:/x", "31 24 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory", None),
        ("0::/", "31 24 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory", None),
    ],
)  # fmt: skip
def test_which_group_is_ours(groups: str, mounts: str, expected: str | None, tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text(groups)
    (tmp_path / "mountinfo").write_text(mounts)
    assert own_group(tmp_path) == (None if expected is None else Path(expected))


# ---- for real --------------------------------------------------------------------------------------------------------


@pytest.fixture
def home() -> Iterator[Path]:
    found = cgroups.home()
    if found is None:
        pytest.skip("this process may not divide its control group")
    yield found
    assert {path.name for path in found.glob(f"{cgroups.PREFIX}*")} <= {f"{cgroups.PREFIX}{os.getpid()}"}


def python(code: str, **limits: int) -> str:
    finished = Sandbox().run([*start_of("-c"), code], limits=Limits(seconds=60.0, **limits))
    return finished.ending if finished.ending != "exited" else finished.stdout.decode() + finished.stderr.decode()


@needs_sandbox
def test_all_processes_together_are_bounded_at_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stays below its own limit, and the monitor sees nothing."""
    monkeypatch.setattr(monitor, "memory_of", lambda roots: 0)
    grow = "import os, time\nfor _ in range(3):\n    os.fork()\nx = bytearray(b'x' * (40 << 20))\ntime.sleep(60)\n"
    assert python("print(1)", memory_mib=64) == "1\n"
    assert python(grow, memory_mib=64, disk_mib=1) == "memory"


@needs_sandbox
def test_processes_are_counted_by_the_group(home: Path) -> None:
    group = Group(home, Limits(processes=2))
    try:
        fork = f"import os; open({str(group.path / 'cgroup.procs')!r}, 'w').write('0'); [os.fork() for _ in range(9)]"
        failed = subprocess.run([sys.executable, "-c", fork], capture_output=True, text=True)
        assert "BlockingIOError" in failed.stderr
    finally:
        group.end()
    assert not group.path.exists()


@needs_sandbox
def test_the_end_of_a_group_ends_what_is_in_it(home: Path) -> None:
    group = Group(home, Limits())
    process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    group.add(process.pid)
    group.end()
    assert process.wait(20) == -9
