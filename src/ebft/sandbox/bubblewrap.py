"""What a program sees of the host and what it may use: the command line of bubblewrap, and control groups."""

from __future__ import annotations

import errno
import fcntl
import marshal
import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
# The Python that runs us, with the standard library alone, which touches nothing else.
PYTHON = (os.path.realpath(sys.executable), "-I", "-S", "-B", "-X", "utf8")


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
    pipes: Sequence[int] = ()  # descriptors that it gets; whoever runs it closes them
    # One of our own, whose `main` is run in place of a program, the pipes as arguments: the sandbox's first process
    # is a Python, and need not start another.
    module: str = ""


def command_line(
    command: Command, gate: int, file_in_memory: Callable[[bytes], int], folder: Path | None = None
) -> tuple[list[str], dict[str, str]]:
    """What starts a program in a sandbox, and its environment. Over the connection `gate` the first process inside
    (`inside/init.py`) asks whether it may begin. A `folder` stands for the box without a sandbox: only resource limits,
    as far as they go there."""
    home = str(folder or BOX)
    variables = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": home, "TMPDIR": home}
    variables |= dict(command.environment)
    sandboxed, limits = folder is None, resource_limits(command.limits)
    job = {
        "arguments": [word if sandboxed else word.replace(BOX, home) for word in command.arguments],
        "module": command.module,
        "gate": gate,
        "pipes": list(command.pipes),
        "user": 2**30 + secrets.randbelow(2**30) if sandboxed and os.geteuid() == 0 else None,
        "limits": limits,
        "filter": seccomp.compile_filter(command.calls) if sandboxed else None,
        "program": seccomp.PROGRAM if sandboxed and command.calls == seccomp.NATIVE else None,
    }
    if folder is None:
        words = options(command, variables, file_in_memory)
        # Through a file: the command line can be read inside, in /proc/1/cmdline.
        told = file_in_memory(b"".join(os.fsencode(word) + b"\0" for word in words))
        line, scripts = [shutil.which("bwrap") or "bwrap", "--args", str(told), "--"], INSIDE_MOUNT
    else:
        kept = ("data" if command.limits.reserves_addresses else "as", "core", "cpu", "fsize")
        job["limits"] = {name: limits[name] for name in kept}
        for name, content in command.files.items():
            (folder / name).write_bytes(content)
            (folder / name).chmod(0o755 if command.executable else 0o644)
        line, scripts = [], str(INSIDE)
    # Of a module Python takes the bytecode, which it does not for a script.
    start = f"import sys; sys.path.insert(0, {scripts!r}); import init; sys.path.pop(0); init.main()"
    return [*line, *PYTHON, "-c", start, str(file_in_memory(marshal.dumps(job)))], variables


def options(command: Command, variables: Mapping[str, str], file_in_memory: Callable[[bytes], int]) -> list[str]:
    """Those of bubblewrap."""
    line = ["--as-pid-1", "--new-session", "--clearenv", "--cap-drop", "ALL", "--hostname", "box"]
    if os.geteuid() == 0:
        # A user namespace would map root to itself, and the kernel does not count root's processes. So no user
        # namespace, and right before the program a user that nobody else is.
        line += ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
        line += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        line += ["--unshare-all", "--unshare-user"]
    line += [word for item in variables.items() for word in ("--setenv", *item)]
    line += _folders(() if sys.base_prefix.startswith("/usr") else (sys.base_prefix,), tuple(command.folders))
    line += ["--proc", "/proc", "--dev", "/dev"]
    for path, size in ((BOX, command.limits.disk_mib * 2**20), ("/dev/shm", SMALL_SIZE)):
        line += ["--perms", "1777", "--size", str(size), "--tmpfs", path]
    for name, content in command.files.items():
        line += ["--perms", "0111" if command.executable else "0444"]
        line += ["--file", str(file_in_memory(content)), f"{BOX}/{name}"]
    return [*line, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", BOX]


@cache
def _folders(*further: tuple[str, ...]) -> tuple[str, ...]:
    """Read-only: the system's programs and libraries, their configuration, our scripts, and `further` folders."""
    line: list[str] = []
    for path in FOLDERS:
        if os.path.islink(path):
            line += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            line += ["--ro-bind", path, path]
    # Before the others: an environment may be under /tmp, and a later mount would cover it.
    line += ["--perms", "1777", "--size", str(SMALL_SIZE), "--tmpfs", "/tmp"]
    shown = [*CONFIGURATION, *map(str, Path("/etc").glob("java-*-openjdk"))]
    shown = [path for path in shown if os.path.exists(path)] + [path for paths in further for path in paths]
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


def sealed_file(content: bytes) -> int:
    """A descriptor of a file in memory that nobody can change, whoever opens it again and how."""
    descriptor = os.memfd_create("ebft", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with os.fdopen(descriptor, "wb", closefd=False) as file:
        file.write(content)
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


# ---- A control group (cgroup v2) for every program, wherever the group that we run in is ours to divide --------------
# It counts everything at once, also what the kernel holds for a program, where the monitor looks a few times a second.

PREFIX = "ebft-"  # of the groups that we make
# MiB beside the memory and the disk of a program: its other two folders, our first process, what the kernel holds.
BESIDE = 64


class Group:
    """The group of one program. Made before it starts, and removed when nothing of it is left."""

    def __init__(self, parent: Path, limits: Limits) -> None:
        self.path = parent / f"{PREFIX}{secrets.token_hex(8)}"
        self.path.mkdir()
        # Files in the sandbox are in memory, and count.
        self._write("memory.max", (limits.memory_mib + limits.disk_mib + BESIDE) * 2**20)
        self._write("memory.oom.group", 1)  # all of it ends, not what the kernel happens to choose
        self._write("pids.max", limits.processes + 2)  # and bubblewrap, and our first process
        with suppress(FileNotFoundError, PermissionError):  # a kernel without swap has no such file
            self._write("memory.swap.max", 0)

    def starting(self, line: list[str]) -> list[str]:
        """A command line that starts in the group."""
        return ["sh", "-c", 'echo 0 > "$0" && exec "$@"', str(self.path / "cgroup.procs"), *line]

    @property
    def ran_out_of_memory(self) -> bool:
        return bool(re.search(r"^oom_kill [1-9]", (self.path / "memory.events").read_text(), re.MULTILINE))

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
    with suppress(OSError):  # not Linux, or not ours to divide
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::/") and "/.." not in line:  # that would be outside of what we can see
                group = Path("/sys/fs/cgroup", line.removeprefix("0::/"))  # where systemd mounts cgroup v2
                return group if divide(group) else None
    return None


def divide(group: Path) -> bool:
    """Makes groups inside this one possible. The kernel wants no processes in a group that has limited ones inside."""
    if not {"memory", "pids"} <= set((group / "cgroup.controllers").read_text().split()):
        return False
    try:
        _hand_down(group)
    except OSError as error:
        inside = {int(line) for line in (group / "cgroup.procs").read_text().split()}
        if error.errno != errno.EBUSY or not inside <= {process for process, _ in process_tree([os.getpid()])}:
            return False  # others are in it, which are not ours to move
        aside = group / f"{PREFIX}{os.getpid()}"
        aside.mkdir(exist_ok=True)
        for process in inside:
            with suppress(ProcessLookupError):  # ended meanwhile
                (aside / "cgroup.procs").write_text(str(process))
        _hand_down(group)
    Group(group, Limits()).end()
    return True


def _hand_down(group: Path) -> None:
    (group / "cgroup.subtree_control").write_text("+memory +pids")


def process_tree(roots: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
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
