"""Running programs that a model wrote.

A program runs under bubblewrap: its own namespaces (no network, no other processes), a file system made of read-only
toolchain folders and one sized folder in memory, an empty environment, no capabilities, an unprivileged user, resource
limits set inside, and a seccomp filter. A watcher outside ends it when it takes too long, holds too much memory or
writes too much. If the sandbox cannot start, nothing runs. `docs/sandbox.md` says what this does not defend against.

This file knows nothing about tests; whether a program is right is decided in `checker.py`.
"""

from __future__ import annotations

import os
import random
import re
import select
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from ebft.sandbox import seccomp
from ebft.sandbox.monitor import Ending, watch

BOX = "/box"  # the one folder a program may write to
INSIDE = Path(__file__).parent / "inside"  # our own scripts that run in the sandbox
INSIDE_MOUNT = "/ebft"
FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
CONFIGURATION = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/mono", "/etc/ssl/certs/java")
UNSAFE_HINT = "or pass --unsafe-exec to run model-written programs with your own rights"


class SandboxError(RuntimeError):
    """The sandbox cannot start; the message says what is missing."""


@dataclass(frozen=True)
class Limits:
    """What one program may use. `memory_mib` bounds each process and, through the watcher, all of them together."""

    seconds: float = 10.0
    memory_mib: int = 1024
    processes: int = 32
    disk_mib: int = 64
    output_kib: int = 1024
    open_files: int = 256
    # Runtimes that reserve far more addresses than they use cannot start under RLIMIT_AS; RLIMIT_DATA counts only
    # private memory that can be written.
    reserves_addresses: bool = False


@dataclass(frozen=True)
class Finished:
    """What is left of a program: how it ended (see `watch.Ending`) and what it wrote."""

    ending: str
    returncode: int | None
    stdout: bytes
    stderr: bytes

    @property
    def succeeded(self) -> bool:
        return self.ending == Ending.EXITED and self.returncode == 0


@dataclass(eq=False)
class Started:
    process: subprocess.Popen[bytes]
    sandbox: Sandbox

    def kill(self) -> None:
        """SIGKILL to the process group; bubblewrap takes everything in its PID namespace with it."""
        with suppress(ProcessLookupError):
            if self.process.poll() is None or self.sandbox.unsafe:
                os.killpg(self.process.pid, signal.SIGKILL)

    def end(self) -> None:
        self.kill()
        self.process.wait()
        with self.sandbox._lock, suppress(ValueError):
            self.sandbox._running.remove(self)


class Gate:
    """Holds a program back until its sandbox is whole and we are known to be alive.

    `--die-with-parent` counts from the moment that bubblewrap asks the kernel for it. Were we killed before, the
    program would start and nobody would ever end it. So the first command inside says that it is there and waits for
    an answer; if we are gone there is none, and it ends.
    """

    SCRIPT = 'echo > "/proc/self/fd/$1"; read -r go < "/proc/self/fd/$2" || exit 1; shift 2; exec "$@"'

    def __init__(self) -> None:
        self._here, there = os.pipe()
        wait, self._go = os.pipe()
        self.inside: tuple[int, ...] = (there, wait)
        self.command = ["sh", "-c", self.SCRIPT, "sh", str(there), str(wait)]

    def open(self) -> None:
        for descriptor in self.inside:
            os.close(descriptor)
        self.inside = ()
        try:
            # No byte: bubblewrap could not start, and whoever waits for the program will see that.
            if select.select([self._here], [], [], 60)[0] and os.read(self._here, 1):
                os.write(self._go, b"\n")
        finally:
            self.close()

    def close(self) -> None:
        for descriptor in (*self.inside, self._here, self._go):
            os.close(descriptor)
        self.inside = ()


@dataclass(eq=False)
class Sandbox:
    """Runs commands in a sandbox. One object may be used by many threads.

    Args:
        unsafe: run without bubblewrap: resource limits, a clean environment and a time limit, nothing more.
    """

    unsafe: bool = False
    limits: Limits = field(default_factory=Limits)
    _checked: bool = field(default=False, init=False, repr=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, init=False, repr=False)
    _running: list[Started] = field(default_factory=list, init=False, repr=False)
    _stopped: bool = field(default=False, init=False, repr=False)

    def stop(self) -> None:
        """Ends everything that runs in it, from any thread, and lets nothing start any more."""
        with self._lock:
            self._stopped = True
            running = list(self._running)
        for started in running:
            started.kill()

    def check(self) -> None:
        """Raises SandboxError unless a program can run here."""
        with self._lock:
            if self._checked:
                return
            if not self.unsafe:
                self._check_programs()
            self._checked = True

    def _check_programs(self) -> None:
        for program, package in (("bwrap", "bubblewrap"), ("prlimit", "util-linux"), ("setpriv", "util-linux")):
            if shutil.which(program) is None:
                raise SandboxError(
                    f"the sandbox needs `{program}`: install the Debian package {package} (apt install {package}), "
                    f"{UNSAFE_HINT}"
                )
        version = bubblewrap_version()
        if version < (0, 7):
            found = ".".join(map(str, version))
            raise SandboxError(
                f"bubblewrap {found} cannot bound the size of a folder; install the Debian package bubblewrap 0.7 or "
                f"newer, {UNSAFE_HINT}"
            )
        probe = self._run(["/usr/bin/env", "true"], replace(self.limits, seconds=30.0))
        if not probe.succeeded:
            said = " ".join(probe.stderr.decode(errors="replace").split())[:300] or f"exit code {probe.returncode}"
            raise SandboxError(
                f"bubblewrap is installed but cannot start here ({said}); unprivileged user namespaces may be switched "
                f"off, or a container may forbid mounts; allow them, {UNSAFE_HINT}"
            )

    def run(
        self,
        command: Sequence[str],
        files: Mapping[str, bytes] | None = None,
        limits: Limits | None = None,
        folders: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        executable: bool = False,
    ) -> Finished:
        """Runs a command in a fresh box and waits for its end.

        Args:
            command: program and arguments; the current folder is the box.
            files: what lies in the box at the start, by name.
            folders: further folders of the host that a toolchain needs, read-only.
            executable: the files may be run but not read, not even by the program itself.
        """
        self.check()
        return self._run(command, limits or self.limits, files, folders, environment, executable)

    def _run(
        self,
        command: Sequence[str],
        limits: Limits,
        files: Mapping[str, bytes] | None = None,
        folders: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        executable: bool = False,
    ) -> Finished:
        out_read, out_write = os.pipe()
        error_read, error_write = os.pipe()
        opened = [out_read, out_write, error_read, error_write]
        try:
            with tempfile.TemporaryDirectory(prefix="ebft-") if self.unsafe else nullcontext() as folder:
                started = self.start(
                    command, limits, files, folders, environment, executable, out_write, error_write, (), folder
                )
                try:
                    for descriptor in (out_write, error_write):
                        os.close(descriptor)
                        opened.remove(descriptor)
                    ending, outputs = watch(
                        started.process,
                        [],
                        [out_read, error_read],
                        limits.seconds,
                        limits.memory_mib,
                        limits.output_kib,
                    )
                finally:
                    started.end()
        finally:
            for descriptor in opened:
                os.close(descriptor)
        return Finished(ending, started.process.returncode, outputs[0], outputs[1])

    def start(
        self,
        command: Sequence[str],
        limits: Limits,
        files: Mapping[str, bytes] | None = None,
        folders: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        executable: bool = False,
        stdout: int = subprocess.DEVNULL,
        stderr: int = subprocess.DEVNULL,
        pass_fds: Sequence[int] = (),
        folder: str | None = None,
        stdin: IO[bytes] | int = subprocess.DEVNULL,
    ) -> Started:
        """Starts a command without waiting. `folder` is the box of an unsafe run."""
        variables = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": BOX, "TMPDIR": BOX}
        variables |= dict(environment or {})
        handed: list[IO[bytes]] = []
        gate = None if self.unsafe else Gate()
        try:
            if gate is None:
                assert folder is not None
                variables |= {"HOME": folder, "TMPDIR": folder}
                _write_files(Path(folder), files or {}, executable)
                full = [*_limits_inside(limits, with_processes=False), *(p.replace(BOX, folder) for p in command)]
            else:
                full, handed = self._bubblewrap(limits, files or {}, folders, variables, executable, gate)
                full += [*_limits_inside(limits), *command]
            process = subprocess.Popen(
                full,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                env=variables,
                cwd=folder if self.unsafe else "/",
                pass_fds=(*pass_fds, *(file.fileno() for file in handed), *(gate.inside if gate else ())),
                start_new_session=True,  # Ctrl-C is for us: a program that it ended would be taken for a wrong one
            )
        except BaseException:
            if gate is not None:
                gate.close()
            raise
        finally:
            for file in handed:
                file.close()
        started = Started(process, self)
        with self._lock:
            self._running.append(started)
            stopped = self._stopped
        try:
            if gate is not None:
                gate.open()
        except BaseException:
            started.end()
            raise
        if stopped:
            started.end()
            raise SandboxError("the sandbox was stopped")
        return started

    def _bubblewrap(
        self,
        limits: Limits,
        files: Mapping[str, bytes],
        folders: Sequence[str],
        variables: Mapping[str, str],
        executable: bool,
        gate: Gate,
    ) -> tuple[list[str], list[IO[bytes]]]:
        """The command line up to the program, and open files that it refers to by descriptor."""
        handed: list[IO[bytes]] = []
        root = os.geteuid() == 0
        line = ["--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
        if root:
            # A user namespace would map root to itself, and the kernel does not count root's processes. So no user
            # namespace, and right before the program a user that nobody else is.
            line += ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
            line += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        else:
            line += ["--unshare-all", "--unshare-user"]
        line += ["--hostname", "box"]
        for name, value in variables.items():
            line += ["--setenv", name, value]
        for path in FOLDERS:
            if os.path.islink(path):
                line += ["--symlink", os.readlink(path), path]
            elif os.path.isdir(path):
                line += ["--ro-bind", path, path]
        # Before what is shown: an environment may lie under /tmp, and a later mount would cover it.
        line += ["--perms", "1777", "--size", str(2**20 * 8), "--tmpfs", "/tmp"]
        java = [str(path) for path in Path("/etc").glob("java-*-openjdk")]
        shown = [path for path in (*CONFIGURATION, *java) if os.path.exists(path)] + list(folders)
        for parent in sorted({str(parent) for path in shown for parent in Path(path).parents}):
            if parent not in ("/", "/tmp") and not parent.startswith("/usr"):
                line += ["--perms", "0755", "--dir", parent]  # else only root may pass through them
        for path in shown:
            line += ["--ro-bind", path, path]
        line += ["--ro-bind", str(INSIDE), INSIDE_MOUNT, "--proc", "/proc", "--dev", "/dev"]
        size = str(limits.disk_mib * 2**20)
        for path in (BOX, "/dev/shm"):
            line += ["--perms", "1777", "--size", size if path == BOX else str(2**20 * 8), "--tmpfs", path]
        for name, content in files.items():
            line += [
                "--perms",
                "0111" if executable else "0444",
                "--file",
                str(_hand(content, handed)),
                f"{BOX}/{name}",
            ]
        line += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", BOX]
        if (rules := seccomp.compile_filter()) is not None:
            line += ["--seccomp", str(_hand(rules, handed))]
        # Through a file: what stands on the command line can be read inside, in /proc/1/cmdline.
        arguments = b"".join(os.fsencode(word) + b"\0" for word in line)
        start = [shutil.which("bwrap") or "bwrap", "--args", str(_hand(arguments, handed)), "--", *gate.command]
        if root:
            user = str(random.SystemRandom().randrange(2**30, 2**31))
            start += ["setpriv", "--reuid", user, "--regid", user, "--clear-groups", "--inh-caps=-all"]
        return start, handed


def _limits_inside(limits: Limits, with_processes: bool = True) -> list[str]:
    """Set inside the namespace, where only the program's own processes are counted."""
    memory = limits.memory_mib * 2**20
    line = ["prlimit", f"--{'data' if limits.reserves_addresses else 'as'}={memory}", "--core=0"]
    line += [f"--cpu={int(limits.seconds) + 2}", f"--fsize={limits.disk_mib * 2**20}", f"--nofile={limits.open_files}"]
    if with_processes:
        line.append(f"--nproc={limits.processes}")
    return line if shutil.which("prlimit") else []


def _hand(content: bytes, handed: list[IO[bytes]]) -> int:
    file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by whoever starts the process
    handed.append(file)
    file.write(content)
    file.seek(0)
    return file.fileno()


def _write_files(folder: Path, files: Mapping[str, bytes], executable: bool) -> None:
    for name, content in files.items():
        path = folder / name
        path.write_bytes(content)
        path.chmod(0o755 if executable else 0o644)


def bubblewrap_version() -> tuple[int, ...]:
    found = subprocess.run(["bwrap", "--version"], capture_output=True, text=True, check=False).stdout
    match = re.search(r"(\d+)\.(\d+)", found)
    return tuple(map(int, match.groups())) if match else (0, 0)
