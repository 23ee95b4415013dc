"""Control groups (cgroup v2), where we may make some: one for each program, with limits that nothing escapes.

Resource limits count what a process has mapped, and the monitor looks a few times a second. A control group counts
everything at once, also what the kernel holds for a program: buffers of pipes, page tables, files in memory. It is used
in addition, wherever the group that we run in is ours to divide, as in

    systemd-run --user --scope -p Delegate=yes ebft score ...

Elsewhere `home` is None, and programs run without.
"""

from __future__ import annotations

import errno
import os
import secrets
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ebft.sandbox.command import Limits
from ebft.sandbox.monitor import process_trees

CONTROLLERS = ("memory", "pids")
PREFIX = "ebft-"  # of the groups that we make
# MiB beside the memory and the disk of a program: its other two folders, our first process, what the kernel holds.
BESIDE = 64


class Group:
    """The group of one program. Made before it starts, and removed when nothing of it is left."""

    def __init__(self, parent: Path, limits: Limits) -> None:
        self.path = parent / f"{PREFIX}{secrets.token_hex(8)}"
        self.path.mkdir()
        # Files in the sandbox are in memory, and count.
        memory = (limits.memory_mib + limits.disk_mib + BESIDE) * 2**20
        try:
            self._write("memory.max", memory)
            self._write("memory.oom.group", 1)  # all of it ends, not what the kernel happens to choose
            self._write("pids.max", limits.processes + 1)  # and our first process
            with suppress(FileNotFoundError, PermissionError):  # a kernel without swap has no such file
                self._write("memory.swap.max", 0)
        except BaseException:
            self.end()
            raise

    def add(self, process: int) -> None:
        self._write("cgroup.procs", process)

    @property
    def ran_out_of_memory(self) -> bool:
        try:
            events = dict(line.split() for line in (self.path / "memory.events").read_text().splitlines())
        except (OSError, ValueError):
            return False
        return int(events.get("oom_kill", 0)) > 0

    def end(self) -> None:
        """Kills everything in it, and removes it."""
        with suppress(OSError):  # Linux 5.14 has it; before, the end of the sandbox's first process must do
            self._write("cgroup.kill", 1)
        deadline = time.monotonic() + 10.0
        while time.monotonic() < deadline:
            try:
                self.path.rmdir()
            except OSError as error:
                if error.errno != errno.EBUSY:
                    return
                time.sleep(0.005)  # what was killed needs a moment
            else:
                return

    def _write(self, name: str, value: int) -> None:
        # One write, and of an existing file: the kernel takes nothing else.
        descriptor = os.open(self.path / name, os.O_WRONLY)
        try:
            os.write(descriptor, str(value).encode())
        finally:
            os.close(descriptor)


_lock = threading.Lock()
_found: list[Path | None] = []


def home() -> Path | None:
    """Where groups can be made, or None. Found out once: it may mean that we move into a group of our own."""
    with _lock:
        if not _found:
            own = own_group()
            _found.append(own if own is not None and divide(own) else None)
        return _found[0]


def own_group(processes: Path = Path("/proc/self")) -> Path | None:
    """The folder of the group that we are in, if cgroup v2 is mounted."""
    try:
        groups = (processes / "cgroup").read_text().splitlines()
        mounts = (processes / "mountinfo").read_text().splitlines()
    except OSError:  # not Linux
        return None
    ours = next((line.removeprefix("0::") for line in groups if line.startswith("0::")), None)
    if ours is None or "/.." in ours:  # outside of what we can see
        return None
    for mount in mounts:
        place, _, kind = mount.partition(" - ")
        root, folder = place.split()[3:5]
        if kind.split()[0] == "cgroup2" and Path(ours).is_relative_to(root):
            return Path(folder) / Path(ours).relative_to(root)
    return None


def divide(group: Path) -> bool:
    """Makes groups inside this one possible. The kernel wants no processes in a group that has limited ones inside."""
    try:
        if not set(CONTROLLERS) <= set((group / "cgroup.controllers").read_text().split()):
            return False
        for left_over in group.glob(f"{PREFIX}*"):  # of a process that was killed
            with suppress(OSError):
                left_over.rmdir()
        try:
            _hand_down(group)
        except OSError as error:
            if error.errno != errno.EBUSY or not _step_aside(group):
                return False
            _hand_down(group)
        Group(group, Limits()).end()
    except OSError:  # not ours to divide
        return False
    return True


def _hand_down(group: Path) -> None:
    with (group / "cgroup.subtree_control").open("w") as file:
        file.write(" ".join(f"+{name}" for name in CONTROLLERS))


def _step_aside(group: Path) -> bool:
    """Moves this process and its children into a group inside; not if there are others, which are not ours to move."""
    inside = [int(line) for line in (group / "cgroup.procs").read_text().split()]
    if not set(inside) <= set(_ourselves()):
        return False
    aside = group / f"{PREFIX}{os.getpid()}"
    aside.mkdir(exist_ok=True)
    for process in inside:
        with suppress(ProcessLookupError):  # ended meanwhile
            (aside / "cgroup.procs").write_text(str(process))
    return True


def _ourselves() -> Sequence[int]:
    return [process for process, _ in process_trees([os.getpid()])]
