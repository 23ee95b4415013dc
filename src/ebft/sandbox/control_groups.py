"""A control group (cgroup v2) for every program, wherever the group that we run in is ours to divide, as in
`systemd-run --user --scope -p Delegate=yes ebft score ...`.

Resource limits count what a process has mapped, and the monitor looks a few times a second; a control group counts
everything at once, also what the kernel holds for a program.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from ebft.sandbox.bubblewrap import Limits

PREFIX = "ebft-"  # of the groups that we make
# MiB beside the memory and the disk of a program: its other two folders, our first process, what the kernel holds.
BESIDE = 64


class Group:
    """The group of one program. Made before it starts, and removed when nothing of it is left."""

    def __init__(self, parent: Path, limits: Limits) -> None:
        self.path = parent / f"{PREFIX}{secrets.token_hex(8)}"
        self.path.mkdir()
        try:
            # Files in the sandbox are in memory, and count.
            self._write("memory.max", (limits.memory_mib + limits.disk_mib + BESIDE) * 2**20)
            self._write("memory.oom.group", 1)  # all of it ends, not what the kernel happens to choose
            self._write("pids.max", limits.processes + 2)  # and bubblewrap, and our first process
            with suppress(FileNotFoundError, PermissionError):  # a kernel without swap has no such file
                self._write("memory.swap.max", 0)
        except BaseException:
            self.end()
            raise

    def starting(self, line: list[str]) -> list[str]:
        """A command line that starts in the group."""
        return ["sh", "-c", 'echo 0 > "$0" && exec "$@"', str(self.path / "cgroup.procs"), *line]

    @property
    def ran_out_of_memory(self) -> bool:
        with suppress(OSError):
            return re.search(r"^oom_kill [1-9]", (self.path / "memory.events").read_text(), re.MULTILINE) is not None
        return False

    def end(self) -> None:
        """Kills everything in it, and removes it."""
        with suppress(OSError):  # Linux 5.14 has it; before, the end of the sandbox's first process must do
            self._write("cgroup.kill", 1)
        for _ in range(2000):
            try:
                return self.path.rmdir()
            except OSError as error:
                if error.errno != errno.EBUSY:
                    return
                time.sleep(0.005)  # what was killed needs a moment

    def _write(self, name: str, value: int) -> None:
        (self.path / name).write_text(str(value))


@cache
def groups_home() -> Path | None:
    """Where groups can be made, or None. Found out once: it may mean that we move into a group of our own."""
    own = own_group()
    return own if own is not None and divide(own) else None


def own_group(said: Path = Path("/proc/self/cgroup")) -> Path | None:
    """The folder of the group that we are in, if cgroup v2 is where systemd mounts it."""
    with suppress(OSError):  # not Linux
        for line in said.read_text().splitlines():
            if line.startswith("0::/") and "/.." not in line:  # that would be outside of what we can see
                return Path("/sys/fs/cgroup", line.removeprefix("0::/"))
    return None


def divide(group: Path) -> bool:
    """Makes groups inside this one possible. The kernel wants no processes in a group that has limited ones inside."""
    try:
        if not {"memory", "pids"} <= set((group / "cgroup.controllers").read_text().split()):
            return False
        try:
            _hand_down(group)
        except OSError as error:
            inside = {int(line) for line in (group / "cgroup.procs").read_text().split()}
            if error.errno != errno.EBUSY or not inside <= {process for process, _ in process_trees([os.getpid()])}:
                return False  # others are in it, which are not ours to move
            aside = group / f"{PREFIX}{os.getpid()}"
            aside.mkdir(exist_ok=True)
            for process in inside:
                with suppress(ProcessLookupError):  # ended meanwhile
                    (aside / "cgroup.procs").write_text(str(process))
            _hand_down(group)
        Group(group, Limits()).end()
    except OSError:  # not ours to divide
        return False
    return True


def _hand_down(group: Path) -> None:
    (group / "cgroup.subtree_control").write_text("+memory +pids")


def process_trees(roots: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
    """These processes and all that they have started, each with its children."""
    waiting = list(roots)
    while waiting:
        process = waiting.pop()
        found: list[int] = []
        with suppress(OSError):  # it has ended meanwhile
            for task in os.listdir(f"/proc/{process}/task"):
                with open(f"/proc/{process}/task/{task}/children") as children:
                    found += map(int, children.read().split())
        waiting += found
        yield process, found
