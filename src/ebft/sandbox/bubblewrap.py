"""The command line of bubblewrap: what a program sees of the host, and when it may start."""

from __future__ import annotations

import fcntl
import json
import marshal
import os
import random
import re
import resource
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from ebft.runtime.descriptors import readable_within
from ebft.sandbox import seccomp
from ebft.sandbox.cgroups import Group
from ebft.sandbox.command import BOX, INSIDE, INSIDE_MOUNT, Command, Limits
from ebft.sandbox.interpreter import interpreter, start_of_module

FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
CONFIGURATION = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/mono", "/etc/ssl/certs/java")
SMALL_SIZE = str(8 * 2**20)  # of /tmp and /dev/shm
ADDRESSES = 64 * 2**30  # for runtimes that reserve many; page tables for all of them would take 128 MiB


def bubblewrap_version() -> tuple[int, ...]:
    found = subprocess.run(["bwrap", "--version"], capture_output=True, text=True, check=False).stdout
    match = re.search(r"(\d+)\.(\d+)", found)
    return tuple(map(int, match.groups())) if match else (0, 0)


class Gate:
    """Holds a program back until its sandbox is complete and we are known to be alive, and ends all of it.

    The first process inside (`inside/init.py`) reports that it is there and waits for an answer. If we are gone there
    is none, and it ends; so it does later, when the pipe for the answer is closed. bubblewrap's own `--die-with-parent`
    is not enough: it counts from the moment that bubblewrap asks the kernel for it, and a bubblewrap that dies while it
    starts leaves a process behind that waits for it forever.

    Meanwhile bubblewrap has said which process that is. We keep a handle on it: when it ends, the kernel ends
    everything in the sandbox, and tells us only when nothing is left. It also joins its control group, where there is
    one.
    """

    def __init__(self, group: Group | None = None) -> None:
        self.group = group
        self._ready, self.report = os.pipe()
        self.wait, self._go = os.pipe()
        # Not a pipe: bubblewrap would die of writing into one that nobody reads any more, and leave its child waiting.
        self.info = os.memfd_create("info")
        self.inside: tuple[int, ...] = (self.report, self.wait)
        self._first: int | None = None

    def open(self) -> None:
        for descriptor in self.inside:
            os.close(descriptor)
        self.inside = ()
        try:
            # No byte: bubblewrap could not start, and whoever waits for the program will see that.
            if readable_within(self._ready, 60) and os.read(self._ready, 1):
                first = json.loads(os.pread(self.info, 4096, 0))["child-pid"]
                with suppress(ProcessLookupError):  # somebody has killed it already: the same
                    self._first = os.pidfd_open(first)
                    if self.group is not None:
                        self.group.add(first)
                    os.write(self._go, b"\n")
        finally:
            self._close_start()

    def _close_start(self) -> None:
        """What is needed only until the program begins."""
        for descriptor in (*self.inside, self._ready, self.info):
            os.close(descriptor)
        self.inside = ()

    def give_up(self) -> None:
        """Instead of `open`, where bubblewrap was not started."""
        self._close_start()
        self.end()

    def end(self) -> None:
        """Kills everything inside, and waits until it is gone."""
        os.close(self._go)
        if self._first is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._first, signal.SIGKILL)
            readable_within(self._first, 60)
            os.close(self._first)
            self._first = None
        if self.group is not None:
            self.group.end()


def bubblewrap_line(
    command: Command, variables: Mapping[str, str], gate: Gate, pipes: Sequence[int] = ()
) -> tuple[list[str], list[int]]:
    """The command line, and descriptors that it refers to; whoever starts it closes them.

    pipes: descriptors whose numbers are at the end of the command's arguments.
    """
    opened: list[int] = []
    root = os.geteuid() == 0
    line = [*_isolation(root), *(word for item in variables.items() for word in ("--setenv", *item))]
    line += [*_folders((*interpreter()[1], *command.folders)), *_box(command, opened)]
    line += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", BOX, "--info-fd", str(gate.info)]
    job = {
        "arguments": list(command.arguments),
        "pipes": list(pipes),
        "module": command.module,
        "ready": gate.report,
        "go": gate.wait,
        "user": random.SystemRandom().randrange(2**30, 2**31) if root else None,
        "limits": resource_limits(command.limits),
        "open_files": command.limits.open_files,
        "filter": seccomp.compile_filter(command.calls),
        "program": seccomp.PROGRAM if command.calls == seccomp.NATIVE else None,
    }
    # Through files: the command line can be read inside, in /proc/1/cmdline.
    arguments = b"".join(os.fsencode(word) + b"\0" for word in line)
    opened.append(sealed_file(arguments))
    job["descriptors"] = max(*opened, *gate.inside, gate.info, *pipes) + 1  # more than any number that it gets
    opened.append(sealed_file(marshal.dumps(job)))
    # What bubblewrap and the first process may do, should anything ever get hold of them.
    limited = ["prlimit", "--core=0", _at_most("fsize", command.limits.disk_mib * 2**20), _at_most("nofile", 1024)]
    bwrap = shutil.which("bwrap") or "bwrap"
    start = start_of_module(INSIDE_MOUNT, "init")
    return [*limited, bwrap, "--args", str(opened[-2]), "--", *start, str(opened[-1])], opened


def _isolation(root: bool) -> list[str]:
    line = ["--as-pid-1", "--new-session", "--clearenv", "--cap-drop", "ALL"]
    if root:
        # A user namespace would map root to itself, and the kernel does not count root's processes. So no user
        # namespace, and right before the program a user that nobody else is.
        line += ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
        line += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        line += ["--unshare-all", "--unshare-user"]
    return [*line, "--hostname", "box"]


@cache
def _folders(further: tuple[str, ...]) -> tuple[str, ...]:
    """Read-only: the system's programs and libraries, their configuration, our scripts, and `further` folders."""
    line: list[str] = []
    for path in FOLDERS:
        if os.path.islink(path):
            line += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            line += ["--ro-bind", path, path]
    # Before the others: an environment may be under /tmp, and a later mount would cover it.
    line += ["--perms", "1777", "--size", SMALL_SIZE, "--tmpfs", "/tmp"]
    java = [str(path) for path in Path("/etc").glob("java-*-openjdk")]
    shown = [*(path for path in (*CONFIGURATION, *java) if os.path.exists(path)), *further]
    for parent in sorted({str(parent) for path in shown for parent in Path(path).parents}):
        if parent not in ("/", "/tmp") and not parent.startswith("/usr"):
            line += ["--perms", "0755", "--dir", parent]  # else only root may pass through them
    for path in shown:
        line += ["--ro-bind", path, path]
    return (*line, "--ro-bind", str(INSIDE), INSIDE_MOUNT)


def _box(command: Command, opened: list[int]) -> list[str]:
    """What can be written to, in memory, and the files in it."""
    line = ["--proc", "/proc", "--dev", "/dev"]
    for path, size in ((BOX, str(command.limits.disk_mib * 2**20)), ("/dev/shm", SMALL_SIZE)):
        line += ["--perms", "1777", "--size", size, "--tmpfs", path]
    mode = "0111" if command.executable else "0444"
    for name, content in command.files.items():
        opened.append(sealed_file(content))
        line += ["--perms", mode, "--file", str(opened[-1]), f"{BOX}/{name}"]
    return line


def resource_limits(limits: Limits) -> dict[str, int]:
    """For the program itself. Processes are counted inside the namespace, where there are only its own."""
    memory = limits.memory_mib * 2**20
    return {
        "RLIMIT_AS": ADDRESSES if limits.reserves_addresses else memory,
        "RLIMIT_DATA": memory,
        "RLIMIT_CPU": int(limits.seconds) + 2,
        "RLIMIT_FSIZE": limits.disk_mib * 2**20,
        "RLIMIT_NPROC": limits.processes,
        "RLIMIT_CORE": 0,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_MSGQUEUE": 0,
        "RLIMIT_SIGPENDING": 128,
    }


def _at_most(name: str, value: int) -> str:
    """An option of prlimit. Only root could raise a limit that is lower already."""
    most = resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))[1]
    return f"--{name}={value if most == resource.RLIM_INFINITY else min(value, most)}"


def limits_line(limits: Limits, pipes: Sequence[int] = ()) -> list[str]:
    """For programs without a sandbox: the same, as far as that goes without namespaces."""
    if not shutil.which("prlimit"):
        return []
    named = resource_limits(limits)
    kept = ("DATA" if limits.reserves_addresses else "AS", "CORE", "CPU", "FSIZE")
    # PHP opens no descriptor by a number beyond the limit.
    wanted = {**{name.lower(): named[f"RLIMIT_{name}"] for name in kept}, "nofile": max([256, *(n + 1 for n in pipes)])}
    return ["prlimit", *(_at_most(name, value) for name, value in wanted.items())]


def sealed_file(content: bytes) -> int:
    """A descriptor of a file in memory that nobody can change, whoever opens it again and how."""
    descriptor = os.memfd_create("ebft", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with os.fdopen(descriptor, "wb", closefd=False) as file:
        file.write(content)
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
