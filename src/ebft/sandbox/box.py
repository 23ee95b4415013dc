"""Running programs that a model wrote.

A program runs under bubblewrap: its own namespaces (no network, no other processes), a file system made of read-only
toolchain folders and one sized folder in memory, an empty environment, no capabilities, an unprivileged user, resource
limits, and a list of system calls (`inside/init.py` sets these). A monitor outside ends it when it takes too long,
holds too much memory or writes too much. If the sandbox cannot start, nothing runs. `docs/sandbox.md` says what this
does not defend against.

This file knows nothing about tests; whether a program is right is decided in `python_tests` and `other_languages`.
"""

from __future__ import annotations

import compileall
import os
import selectors
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from weakref import WeakSet

from ebft.errors import SandboxError
from ebft.sandbox.bubblewrap import (
    BOX,
    INSIDE,
    INSIDE_MOUNT,
    Command,
    Gate,
    Group,
    Limits,
    bubblewrap_line,
    groups_home,
    prlimit,
    process_trees,
    resource_limits,
    sealed_file,
)

UNSAFE_HINT = "or pass --unsafe-exec to run model-written programs with your own rights"
# A command, where it writes its output and its errors, and the pipes that it gets.
Started = tuple[Command, int, int, Sequence[int]]


class Ending:
    EXITED = "exited"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    OUTPUT = "output"


@dataclass(frozen=True)
class Finished:
    """What is left of a command: how it ended and what it wrote."""

    ending: str
    returncode: int | None
    stdout: bytes
    stderr: bytes

    @property
    def succeeded(self) -> bool:
        return self.ending == Ending.EXITED and self.returncode == 0


@dataclass(eq=False)
class RunningCommand:
    process: subprocess.Popen[bytes]
    gate: Gate | None  # None without a sandbox
    folder: tempfile.TemporaryDirectory[str] | None  # on the host, the box of unsafe runs

    def kill(self) -> None:
        """SIGKILL to the process group; the end of bubblewrap ends the first process inside, and so everything."""
        with suppress(ProcessLookupError):
            if self.process.poll() is None or self.gate is None:
                os.killpg(self.process.pid, signal.SIGKILL)

    @property
    def ran_out_of_memory(self) -> bool:
        """Whether the kernel ended it for that, by its control group."""
        return self.gate is not None and self.gate.group is not None and self.gate.group.ran_out_of_memory

    def end(self) -> None:
        """Also what has outlived bubblewrap; afterwards nothing is left."""
        self.kill()
        self.process.wait()
        if self.gate is not None:
            self.gate.end()
        if self.folder is not None:
            self.folder.cleanup()


@dataclass(eq=False)
class Sandbox:
    """Runs commands in a sandbox. One object may be used by many threads.

    Args:
        unsafe: run without bubblewrap: resource limits, a clean environment and a time limit, nothing more.
        limits: of programs for which the caller names no others.
    """

    unsafe: bool = False
    limits: Limits = field(default_factory=Limits)
    _checked: bool = field(default=False, init=False, repr=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, init=False, repr=False)
    _running: WeakSet[RunningCommand] = field(default_factory=WeakSet, init=False, repr=False)
    _stopped: bool = field(default=False, init=False, repr=False)

    @property
    def scripts(self) -> str:
        """The folder of our own scripts (`inside/`), as a program in the sandbox sees it."""
        return str(INSIDE) if self.unsafe else INSIDE_MOUNT

    @property
    def control_groups(self) -> bool:
        """Whether every program gets one."""
        return not self.unsafe and groups_home() is not None

    def stop(self) -> None:
        """Ends everything that runs in it, from any thread, and lets nothing start any more."""
        with self._lock:
            self._stopped = True
            running = list(self._running)
        for command in running:
            command.kill()

    def check(self) -> None:
        """Raises SandboxError unless a program can run here."""
        with self._lock:
            if self._checked:
                return
            compileall.compile_dir(INSIDE, quiet=2)  # if we may; else every program waits for it
            for program, package in (("bwrap", "bubblewrap"), ("prlimit", "util-linux"))[self.unsafe :]:
                if shutil.which(program) is None:
                    raise SandboxError(f"the sandbox needs `{program}`: apt install {package}, {UNSAFE_HINT}")
            probe = self._run(Command(["/usr/bin/env", "true"], replace(self.limits, seconds=30.0)))
            if not probe.succeeded:
                said = " ".join(probe.stderr.decode(errors="replace").split())[:300] or f"exit code {probe.returncode}"
                raise SandboxError(
                    f"bubblewrap is installed but cannot start here ({said}); it must be 0.7 or newer, and "
                    "unprivileged user namespaces may be switched off, or a container may forbid mounts: allow them, "
                    f"{UNSAFE_HINT}"
                )
            self._checked = True

    def run(self, command: Command) -> Finished:
        """Runs a program in a fresh box and waits for its end."""
        self.check()
        return self._run(command)

    def _run(self, command: Command) -> Finished:
        (out, to_out), (error, to_error) = os.pipe(), os.pipe()
        ending, outputs, returncode = self.run_together([(command, to_out, to_error, ())], [out, error], command.limits)
        return Finished(ending, returncode, *outputs)

    def run_together(
        self, commands: Sequence[Started], results: Sequence[int], limits: Limits
    ) -> tuple[str, list[bytes], int | None]:
        """Runs commands side by side until the last of them ends; for the limits they count together.

        Args:
            results: the other ends of what is read; these and all descriptors of the commands are closed.

        Returns:
            One of `Ending`, what was read, and the exit code of the last.
        """
        running: list[RunningCommand] = []
        with ExitStack() as stack:
            for number in results:
                stack.callback(os.close, number)
            with ExitStack() as starting:
                for number in {number for _, *streams, pipes in commands for number in (*streams, *pipes)}:
                    if number >= 0:  # not `subprocess.DEVNULL`
                        starting.callback(os.close, number)
                for started in commands:
                    running.append(self.start(*started))
                    stack.callback(running[-1].end)
            processes = [started.process for started in reversed(running)]
            ending, outputs = monitor(processes, results, limits)
            if ending == Ending.EXITED and any(started.ran_out_of_memory for started in running):
                ending = Ending.MEMORY
        return ending, outputs, processes[0].returncode

    def start(self, command: Command, stdout: int, stderr: int, pipes: Sequence[int] = ()) -> RunningCommand:
        """Starts a command without waiting; the program gets `pipes` as well."""
        variables = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": BOX, "TMPDIR": BOX}
        variables |= dict(command.environment)
        opened = [sealed_file(command.stdin)]
        gate = folder = None
        try:
            if self.unsafe:
                folder = tempfile.TemporaryDirectory(prefix="ebft-")
                variables |= {"HOME": folder.name, "TMPDIR": folder.name}
                for name, content in command.files.items():
                    path = Path(folder.name, name)
                    path.write_bytes(content)
                    path.chmod(0o755 if command.executable else 0o644)
                # The same limits as far as that goes without namespaces.
                kept = ("data" if command.limits.reserves_addresses else "as", "core", "cpu", "fsize")
                line = prlimit({name: resource_limits(command.limits)[name] for name in kept})
                line += [word.replace(BOX, folder.name) for word in command.arguments]
                passed = list(pipes)
            else:
                gate = Gate(self._group(command.limits))
                line, needed = bubblewrap_line(command, variables, gate, pipes)
                opened += needed
                passed = [*pipes, *needed, gate.theirs.fileno(), gate.info.fileno()]
            process = subprocess.Popen(
                line,
                stdin=opened[0],
                stdout=stdout,
                stderr=stderr,
                env=variables,
                cwd=folder.name if folder else "/",
                pass_fds=passed,
                start_new_session=True,  # Ctrl-C is for us: a program that it ended would be taken for a wrong one
            )
        except BaseException:
            if gate is not None:
                gate.end()
            raise
        finally:
            for descriptor in opened:
                os.close(descriptor)
        started = RunningCommand(process, gate, folder)
        with self._lock:
            self._running.add(started)
        try:
            if gate is not None:
                gate.open()
            if self._stopped:
                raise SandboxError("the sandbox was stopped")
        except BaseException as error:
            started.end()
            if isinstance(error, OSError):
                raise SandboxError(f"a program could not be put into its sandbox: {error}") from None
            raise
        return started

    def _group(self, limits: Limits) -> Group | None:
        """A control group for one program, where we can make some."""
        home = groups_home()
        try:
            return None if home is None else Group(home, limits)
        except OSError as error:
            raise SandboxError(f"no control group can be made in {home} any more: {error.strerror}") from None


# ---- Watching from outside: time, memory of all processes, and what they write ---------------------------------------

MEMORY_EVERY = 0.05  # seconds; a program fills perhaps 200 MiB in between
PIPE = 2**20  # bytes that a pipe can hold: so much may have been written in time and not been read
INODE = 1024  # bytes that the kernel keeps for an empty file


def monitor(
    processes: Sequence[subprocess.Popen[bytes]], pipes: Sequence[int], limits: Limits
) -> tuple[str, list[bytes]]:
    """Waits for the end of the first process, reading what it writes into the pipes; ends nothing itself.

    The other processes run beside it and count for the memory. Returns one of `Ending` and what each pipe carried.
    """
    now = time.monotonic()
    deadline, next_check = now + limits.seconds, now + MEMORY_EVERY
    read: dict[int, bytearray] = {pipe: bytearray() for pipe in pipes}
    room, roots = limits.output_kib * 1024, [process.pid for process in processes]
    ending = Ending.EXITED
    handle = os.pidfd_open(roots[0]) if processes[0].poll() is None else -1
    try:
        with selectors.DefaultSelector() as selector:
            for pipe in pipes:
                os.set_blocking(pipe, False)
            for descriptor in (*pipes, *([handle] if handle >= 0 else [])):
                selector.register(descriptor, selectors.EVENT_READ)
            while selector.get_map() and ending == Ending.EXITED:
                now = time.monotonic()
                late = now >= deadline
                if now >= next_check:
                    next_check = now + MEMORY_EVERY
                    if memory_of(roots) > limits.memory_mib * 2**20:
                        ending = Ending.MEMORY
                        break
                for key, _ in selector.select(max(0.0, min(deadline, next_check) - now)):
                    closed = key.fd == handle or _read(key.fd, read[key.fd], PIPE if late else 65536)
                    if closed:
                        selector.unregister(key.fd)
                if late and selector.get_map():
                    # Only after a last read: we may have been held up, and not the program.
                    ending = Ending.TIMEOUT
                elif sum(map(len, read.values())) > room:
                    ending = Ending.OUTPUT
    finally:
        if handle >= 0:
            os.close(handle)
    return ending, [bytes(read[pipe][:room]) for pipe in pipes]


def _read(pipe: int, into: bytearray, most: int) -> bool:
    """Reads what is in a pipe, about so much of it; whether its other end is closed."""
    most += len(into)
    while len(into) < most:
        try:
            chunk = os.read(pipe, 65536)
        except BlockingIOError:
            return False
        if not chunk:
            return True
        into += chunk
    return False


def memory_of(roots: Sequence[int]) -> int:
    """Bytes that the processes of these trees hold: memory, page tables, small files and buffers of pipes and sockets.

    Files that are mapped into them do not count. Orphans of a PID namespace become children of its first process, so
    nothing leaves the tree.
    """
    total = 0
    buffers: set[str] = set()
    for process, children in process_trees(roots):
        try:
            if process in roots:
                total += sum(map(_files_of, children))
            with open(f"/proc/{process}/status") as status:
                for line in status:
                    if line.startswith(("RssAnon:", "RssShmem:", "VmPTE:")):
                        total += int(line.split()[1]) * 1024
            for descriptor in os.listdir(f"/proc/{process}/fd") if process not in roots else ():
                buffers.add(os.readlink(f"/proc/{process}/fd/{descriptor}"))  # such as pipe:[1234]
        except OSError:  # it has ended meanwhile
            continue
    sizes = _buffer_sizes()
    return total + sum(sizes.get(name.partition(":")[0], 0) for name in buffers)


@cache
def _buffer_sizes() -> dict[str, int]:
    """The most that the kernel keeps for a pipe or a socket that nobody may enlarge."""
    try:
        socket = int(Path("/proc/sys/net/core/wmem_default").read_text())
    except OSError:
        socket = 212992
    return {"pipe": 16 * os.sysconf("SC_PAGE_SIZE"), "socket": socket * 3 // 2}  # with what it needs for its lists


def _files_of(first: int) -> int:
    """What the kernel keeps for the files of a sandbox, beside their content, which the folders' sizes bound."""
    root = f"/proc/{first}/root"
    if not os.path.isdir(f"{root}/box"):  # no sandbox
        return 0
    found = (os.statvfs(f"{root}/{folder}") for folder in ("box", "tmp", "dev/shm"))
    return sum(folder.f_files - folder.f_ffree for folder in found) * INODE
