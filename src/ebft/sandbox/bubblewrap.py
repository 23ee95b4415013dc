"""The command line of bubblewrap: what a program sees of the host, and when it may start."""

from __future__ import annotations

import os
import random
import re
import select
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from ebft.sandbox import seccomp
from ebft.sandbox.command import BOX, INSIDE, INSIDE_MOUNT, Command, Limits

FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
CONFIGURATION = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/mono", "/etc/ssl/certs/java")
SMALL_SIZE = str(8 * 2**20)  # of /tmp and /dev/shm


def bubblewrap_version() -> tuple[int, ...]:
    found = subprocess.run(["bwrap", "--version"], capture_output=True, text=True, check=False).stdout
    match = re.search(r"(\d+)\.(\d+)", found)
    return tuple(map(int, match.groups())) if match else (0, 0)


class Gate:
    """Holds a program back until its sandbox is complete and we are known to be alive.

    `--die-with-parent` counts from the moment that bubblewrap asks the kernel for it. Were we killed before, the
    program would start and nobody would ever end it. So the first command inside reports that it is there and waits
    for an answer; if we are gone there is none, and it ends.
    """

    SCRIPT = 'echo > "/proc/self/fd/$1"; read -r go < "/proc/self/fd/$2" || exit 1; shift 2; exec "$@"'

    def __init__(self) -> None:
        self._ready, report = os.pipe()
        wait, self._go = os.pipe()
        self.inside: tuple[int, ...] = (report, wait)
        self.command = ["sh", "-c", self.SCRIPT, "sh", str(report), str(wait)]

    def open(self) -> None:
        for descriptor in self.inside:
            os.close(descriptor)
        self.inside = ()
        try:
            # No byte: bubblewrap could not start, and whoever waits for the program will see that.
            if select.select([self._ready], [], [], 60)[0] and os.read(self._ready, 1):
                os.write(self._go, b"\n")
        finally:
            self.close()

    def close(self) -> None:
        for descriptor in (*self.inside, self._ready, self._go):
            os.close(descriptor)
        self.inside = ()


def bubblewrap_line(command: Command, variables: Mapping[str, str], gate: Gate) -> tuple[list[str], list[IO[bytes]]]:
    """The command line up to the program, and open files that it refers to by descriptor."""
    opened: list[IO[bytes]] = []
    root = os.geteuid() == 0
    line = [*_isolation(root), *(word for item in variables.items() for word in ("--setenv", *item))]
    line += [*_folders(command.folders), *_box(command, opened)]
    line += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", BOX]
    if (rules := seccomp.compile_filter()) is not None:
        line += ["--seccomp", str(_descriptor(rules, opened))]
    # Through a file: the command line can be read inside, in /proc/1/cmdline.
    arguments = b"".join(os.fsencode(word) + b"\0" for word in line)
    start = [shutil.which("bwrap") or "bwrap", "--args", str(_descriptor(arguments, opened)), "--", *gate.command]
    if root:
        user = str(random.SystemRandom().randrange(2**30, 2**31))
        start += ["setpriv", "--reuid", user, "--regid", user, "--clear-groups", "--inh-caps=-all"]
    return start, opened


def _isolation(root: bool) -> list[str]:
    line = ["--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
    if root:
        # A user namespace would map root to itself, and the kernel does not count root's processes. So no user
        # namespace, and right before the program a user that nobody else is.
        line += ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
        line += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        line += ["--unshare-all", "--unshare-user"]
    return [*line, "--hostname", "box"]


def _folders(further: Sequence[str]) -> list[str]:
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
    shown = [path for path in (*CONFIGURATION, *java) if os.path.exists(path)] + list(further)
    for parent in sorted({str(parent) for path in shown for parent in Path(path).parents}):
        if parent not in ("/", "/tmp") and not parent.startswith("/usr"):
            line += ["--perms", "0755", "--dir", parent]  # else only root may pass through them
    for path in shown:
        line += ["--ro-bind", path, path]
    return [*line, "--ro-bind", str(INSIDE), INSIDE_MOUNT]


def _box(command: Command, opened: list[IO[bytes]]) -> list[str]:
    """What can be written to, in memory, and the files in it."""
    line = ["--proc", "/proc", "--dev", "/dev"]
    for path, size in ((BOX, str(command.limits.disk_mib * 2**20)), ("/dev/shm", SMALL_SIZE)):
        line += ["--perms", "1777", "--size", size, "--tmpfs", path]
    mode = "0111" if command.executable else "0444"
    for name, content in command.files.items():
        line += ["--perms", mode, "--file", str(_descriptor(content, opened)), f"{BOX}/{name}"]
    return line


def limits_line(limits: Limits, with_processes: bool = True) -> list[str]:
    """Set inside the namespace, where only the program's own processes are counted."""
    memory = limits.memory_mib * 2**20
    line = ["prlimit", f"--{'data' if limits.reserves_addresses else 'as'}={memory}", "--core=0"]
    line += [f"--cpu={int(limits.seconds) + 2}", f"--fsize={limits.disk_mib * 2**20}", f"--nofile={limits.open_files}"]
    if with_processes:
        line.append(f"--nproc={limits.processes}")
    return line if shutil.which("prlimit") else []


def _descriptor(content: bytes, opened: list[IO[bytes]]) -> int:
    file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by whoever starts the process
    opened.append(file)
    file.write(content)
    file.seek(0)
    return file.fileno()
