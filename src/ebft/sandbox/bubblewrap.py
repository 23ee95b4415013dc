"""The command line of bubblewrap: what a program sees of the host, what it may use, and when it may start.

Control groups (cgroup v2) are used in addition, wherever the group that we run in is ours to divide, as in
`systemd-run --user --scope -p Delegate=yes ebft score ...`. Resource limits count what a process has mapped, and the
monitor looks a few times a second; a control group counts everything at once, also what the kernel holds for a program.
"""

from __future__ import annotations

import errno
import fcntl
import json
import marshal
import os
import re
import resource
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from ebft.sandbox import seccomp

BOX = "/box"  # the one folder a program may write to
INSIDE = Path(__file__).parent / "inside"  # our own scripts that run in the sandbox
INSIDE_MOUNT = "/ebft"
FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
CONFIGURATION = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/mono", "/etc/ssl/certs/java")
SMALL_SIZE = 8 * 2**20  # of /tmp and /dev/shm
ADDRESSES = 64 * 2**30  # for runtimes that reserve many; page tables for all of them would take 128 MiB


@dataclass(frozen=True)
class Limits:
    """What one program may use. `memory_mib` bounds each process and, through the monitor, all of them together."""

    seconds: float = 10.0
    memory_mib: int = 1024
    processes: int = 32
    disk_mib: int = 64
    output_kib: int = 1024
    open_files: int = 64
    # Runtimes that reserve far more addresses than they use cannot start under such an RLIMIT_AS; RLIMIT_DATA counts
    # only private memory that can be written.
    reserves_addresses: bool = False


@dataclass(frozen=True)
class Command:
    """A program and its arguments, whose current folder is the box, and what it gets."""

    arguments: Sequence[str]
    limits: Limits = Limits()
    files: Mapping[str, bytes] = field(default_factory=dict)  # in the box, by name
    stdin: bytes = b""
    folders: Sequence[str] = ()  # of the host, read-only, that a toolchain needs
    environment: Mapping[str, str] = field(default_factory=dict)
    executable: bool = False  # the files may be run but not read, not even by the program itself
    calls: str = seccomp.RUNTIME
    # That of our own which the arguments run: the sandbox's first process is a Python, and need not start another.
    module: str = ""


# ---- The command line ------------------------------------------------------------------------------------------------


def bubblewrap_version() -> str:
    """Such as `0.8.0`."""
    found = subprocess.run(["bwrap", "--version"], capture_output=True, text=True, check=False).stdout
    match = re.search(r"[\d.]+", found)
    return match[0] if match else "unknown"


@cache
def interpreter() -> tuple[str, tuple[str, ...]]:
    """The Python that runs us and our own scripts in the sandbox, and the folder that it needs besides /usr."""
    return os.path.realpath(sys.executable), () if sys.base_prefix.startswith("/usr") else (sys.base_prefix,)


def start_of(script: str) -> tuple[str, ...]:
    """The command that runs a script with the standard library alone, and touches nothing else."""
    return (interpreter()[0], "-I", "-S", "-B", "-X", "utf8", script)


def start_of_module(folder: str, module: str) -> tuple[str, ...]:
    """The same for `main` of one of our own modules. Python takes their bytecode, which it does not for a script."""
    run = f"import sys; sys.path.insert(0, {folder!r}); import {module}; sys.path.pop(0); {module}.main()"
    return (*start_of("-c"), run)


def bubblewrap_line(
    command: Command, variables: Mapping[str, str], gate: Gate, pipes: Sequence[int] = ()
) -> tuple[list[str], list[int]]:
    """The command line, and descriptors that it refers to; whoever starts it closes them. The program gets `pipes`."""
    opened: list[int] = []
    root, inside, told = os.geteuid() == 0, gate.theirs.fileno(), gate.info.fileno()
    line = ["--as-pid-1", "--new-session", "--clearenv", "--cap-drop", "ALL", "--hostname", "box"]
    if root:
        # A user namespace would map root to itself, and the kernel does not count root's processes. So no user
        # namespace, and right before the program a user that nobody else is.
        line += ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
        line += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        line += ["--unshare-all", "--unshare-user"]
    line += [word for item in variables.items() for word in ("--setenv", *item)]
    line += _folders((*interpreter()[1], *command.folders))
    line += ["--proc", "/proc", "--dev", "/dev"]
    for path, size in ((BOX, command.limits.disk_mib * 2**20), ("/dev/shm", SMALL_SIZE)):
        line += ["--perms", "1777", "--size", str(size), "--tmpfs", path]
    for name, content in command.files.items():
        opened.append(sealed_file(content))
        line += ["--perms", "0111" if command.executable else "0444", "--file", str(opened[-1]), f"{BOX}/{name}"]
    line += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", BOX, "--info-fd", str(told)]
    job = {
        "arguments": list(command.arguments),
        "pipes": list(pipes),
        "module": command.module,
        "gate": inside,
        "user": 2**30 + secrets.randbelow(2**30) if root else None,
        "limits": resource_limits(command.limits),
        "filter": seccomp.compile_filter(command.calls),
        "program": seccomp.PROGRAM if command.calls == seccomp.NATIVE else None,
    }
    # Through files: the command line can be read inside, in /proc/1/cmdline.
    opened.append(sealed_file(b"".join(os.fsencode(word) + b"\0" for word in line)))
    job["descriptors"] = max(*opened, inside, told, *pipes) + 1  # more than any number that it gets
    opened.append(sealed_file(marshal.dumps(job)))
    # What bubblewrap and the first process may do, should anything ever get hold of them.
    limited = prlimit({"core": 0, "fsize": command.limits.disk_mib * 2**20, "nofile": 1024})
    start = start_of_module(INSIDE_MOUNT, "init")
    return [
        *limited,
        shutil.which("bwrap") or "bwrap",
        "--args",
        str(opened[-2]),
        "--",
        *start,
        str(opened[-1]),
    ], opened


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
    line += ["--perms", "1777", "--size", str(SMALL_SIZE), "--tmpfs", "/tmp"]
    java = map(str, Path("/etc").glob("java-*-openjdk"))
    shown = [*(path for path in (*CONFIGURATION, *java) if os.path.exists(path)), *further]
    for parent in sorted({str(parent) for path in shown for parent in Path(path).parents}):
        if parent not in ("/", "/tmp") and not parent.startswith("/usr"):
            line += ["--perms", "0755", "--dir", parent]  # else only root may pass through them
    for path in shown:
        line += ["--ro-bind", path, path]
    return (*line, "--ro-bind", str(INSIDE), INSIDE_MOUNT)


def resource_limits(limits: Limits) -> dict[str, int]:
    """For the program itself. Processes are counted inside the namespace, where there are only its own."""
    memory = limits.memory_mib * 2**20
    return {
        "as": ADDRESSES if limits.reserves_addresses else memory,
        "data": memory,
        "cpu": int(limits.seconds) + 2,
        "fsize": limits.disk_mib * 2**20,
        "nproc": limits.processes,
        "core": 0,
        "memlock": 0,
        "msgqueue": 0,
        "sigpending": 128,
        "nofile": limits.open_files,
    }


def prlimit(limits: Mapping[str, int]) -> list[str]:
    """A program under these limits, or lower ones that it has already: only root could raise those."""
    most = {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))[1] for name in limits}
    least = {name: n if most[name] == resource.RLIM_INFINITY else min(n, most[name]) for name, n in limits.items()}
    return ["prlimit", *(f"--{name}={value}" for name, value in least.items())]


def sealed_file(content: bytes) -> int:
    """A descriptor of a file in memory that nobody can change, whoever opens it again and how."""
    descriptor = os.memfd_create("ebft", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with os.fdopen(descriptor, "wb", closefd=False) as file:
        file.write(content)
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


class Gate:
    """Holds a program back until its sandbox is complete and we are known to be alive, and ends all of it.

    The first process inside (`inside/init.py`) reports that it is there and waits for an answer. If we are gone there
    is none, and it ends; so it does when our end of the connection is closed. (`--die-with-parent` is not enough: a
    bubblewrap that dies while it starts leaves a process behind that waits for it forever.) bubblewrap has said which
    process that is, and we keep a handle on it: when it ends, the kernel ends everything in the sandbox.
    """

    def __init__(self, group: Group | None = None) -> None:
        self.group = group
        self.ours, self.theirs = socket.socketpair()
        # Not a pipe: bubblewrap would die of writing into one that nobody reads any more, and leave its child waiting.
        self.info = os.fdopen(os.memfd_create("info"), "rb")
        self._first: int | None = None

    def open(self) -> None:
        self.theirs.close()
        # No byte: bubblewrap could not start, and whoever waits for the program will see that.
        if _readable_within(self.ours.fileno(), 60) and self.ours.recv(1):
            first = json.loads(os.pread(self.info.fileno(), 4096, 0))["child-pid"]
            with suppress(ProcessLookupError):  # somebody has killed it already: the same
                self._first = os.pidfd_open(first)
                if self.group is not None:
                    self.group.add(first)
                self.ours.send(b"\n")
        self.info.close()

    def end(self) -> None:
        """Kills everything inside, and waits until it is gone."""
        for end in (self.theirs, self.info, self.ours):
            end.close()
        if self._first is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._first, signal.SIGKILL)
            _readable_within(self._first, 60)
            os.close(self._first)
            self._first = None
        if self.group is not None:
            self.group.end()


def _readable_within(descriptor: int, seconds: float) -> bool:
    """Whether there is something to read, or the other end is closed."""
    poll = select.poll()  # not `select.select`, which knows only numbers below 1024
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(1000 * seconds))


# ---- Control groups --------------------------------------------------------------------------------------------------

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
        for _ in range(2000):
            try:
                return self.path.rmdir()
            except OSError as error:
                if error.errno != errno.EBUSY:
                    return
                time.sleep(0.005)  # what was killed needs a moment

    def _write(self, name: str, value: int) -> None:
        (self.path / name).write_text(str(value))


_lock = threading.Lock()


def groups_home() -> Path | None:
    """Where groups can be made, or None. Found out once: it may mean that we move into a group of our own."""
    with _lock:
        return _groups_home()


@cache
def _groups_home() -> Path | None:
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
            if error.errno != errno.EBUSY:
                return False
            inside = {int(line) for line in (group / "cgroup.procs").read_text().split()}
            if not inside <= {process for process, _ in process_trees([os.getpid()])}:
                return False  # others, which are not ours to move
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
