"""Running programs that a model wrote, under bubblewrap, in namespaces of their own; a monitor outside ends what takes
too long, holds too much memory or writes too much. If the sandbox cannot start, nothing runs. `docs/sandbox.md` says
what this does not defend against. Whether a program is right is decided in `python_tests` and `other_languages`.
"""

from __future__ import annotations

import compileall
import os
import selectors
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from ebft.errors import SandboxError
from ebft.sandbox.bubblewrap import INSIDE, Command, Group, Limits, command_line, groups_home, process_tree, sealed_file

Ending = Literal["exited", "timeout", "memory", "output"]  # by itself, or because of a limit


@dataclass(frozen=True)
class Finished:
    """What is left of a command: how it ended and what it wrote."""

    ending: Ending
    returncode: int | None
    stdout: bytes
    stderr: bytes

    @property
    def succeeded(self) -> bool:
        return self.ending == "exited" and self.returncode == 0


class RunningCommand:
    """A command in a box of its own, of which nothing is left after `end`.

    The first process inside reports that it is there and waits for an answer; it ends, and with it everything in the
    sandbox, when our end of the connection closes. (`--die-with-parent` is not enough: a bubblewrap that dies while it
    starts leaves a process behind that waits for it forever.)
    """

    def __init__(self, command: Command, stdout: int, stderr: int, unsafe: bool) -> None:
        home = None if unsafe else groups_home()
        with ExitStack() as box, ExitStack() as handed_over:
            self.group = None if home is None else Group(home, command.limits)
            if self.group is not None:
                box.callback(self.group.end)
            ours, theirs = socket.socketpair()
            box.enter_context(ours)
            handed_over.enter_context(theirs)
            passed = [*command.pipes, theirs.fileno()]

            def file_in_memory(content: bytes) -> int:
                passed.append(sealed_file(content))
                handed_over.callback(os.close, passed[-1])
                return passed[-1]

            folder = Path(box.enter_context(tempfile.TemporaryDirectory(prefix="ebft-"))) if unsafe else None
            line, variables = command_line(command, theirs.fileno(), file_in_memory, folder)
            self.process = subprocess.Popen(
                line if self.group is None else self.group.starting(line),
                stdin=file_in_memory(command.stdin),
                stdout=stdout,
                stderr=stderr,
                env=variables,
                cwd=folder or "/",
                pass_fds=passed,
                start_new_session=True,  # Ctrl-C is for us: a program that it ended would be taken for a wrong one
            )
            box.callback(_wait_until_closed, ours)
            box.callback(self.process.wait)
            box.callback(self._kill)
            handed_over.close()
            ours.settimeout(60)
            # No byte: bubblewrap could not start, and whoever waits for the program will see that.
            if ours.recv(1):
                with suppress(BrokenPipeError):  # somebody has killed it already
                    ours.send(b"\n")
            self.end = box.pop_all().close  # also ends what has outlived bubblewrap

    def _kill(self) -> None:
        """SIGKILL to the process group; the end of bubblewrap ends the first process inside, and so everything."""
        if self.process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)


def _wait_until_closed(gate: socket.socket) -> None:
    """For the end of the first process inside, which has the other end of the connection."""
    with suppress(OSError):
        gate.shutdown(socket.SHUT_WR)
        while gate.recv(1):
            pass


@dataclass(eq=False)
class Sandbox:
    """Runs commands in a sandbox. One object may be used by many threads."""

    unsafe: bool = False  # without bubblewrap: resource limits, a clean environment and a time limit, nothing more
    limits: Limits = Limits()  # of programs for which the caller names no others
    _checked: bool = field(default=False, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)
    _stopped: threading.Event = field(default_factory=threading.Event, init=False, repr=False)

    def stop(self) -> None:
        """Ends everything that runs in it, from any thread: whoever waits for it gets a SandboxError."""
        self._stopped.set()

    def check(self) -> None:
        """Raises SandboxError unless a program can run here."""
        with self._lock:
            if self._checked:
                return
            compileall.compile_dir(INSIDE, quiet=2)  # if we may; else every program waits for it
            said = "it is not found"
            if is_there := self.unsafe or shutil.which("bwrap") is not None:
                probe = self._run([Command(["/usr/bin/env", "true"])], replace(self.limits, seconds=30.0))
                said = " ".join(probe.stderr.decode(errors="replace").split())[:300] or f"exit code {probe.returncode}"
            if not is_there or not probe.succeeded:
                needs = "0.7 or newer (apt install bubblewrap), namespaces, and mounts, which a container may forbid"
                unsafe = "pass --unsafe-exec to run model-written programs with your own rights"
                raise SandboxError(f"bubblewrap cannot start here ({said}); it needs {needs}, or {unsafe}")
            self._checked = True

    def run(self, *commands: Command, limits: Limits | None = None) -> Finished:
        """Runs programs side by side, each in a fresh box, until the last of them ends, whose output is returned.

        `limits` are those of all of them together, or else of the last.
        """
        self.check()
        return self._run(commands, limits or commands[-1].limits)

    def _run(self, commands: Sequence[Command], limits: Limits) -> Finished:
        (out, to_out), (error, to_error) = os.pipe(), os.pipe()
        running: list[RunningCommand] = []
        with ExitStack() as stack:
            for number in (out, error):
                stack.callback(os.close, number)
            with ExitStack() as starting:
                for number in {to_out, to_error, *(pipe for command in commands for pipe in command.pipes)}:
                    starting.callback(os.close, number)
                for command in commands:
                    last = command is commands[-1]
                    running.append(self.start(command, *((to_out, to_error) if last else 2 * (subprocess.DEVNULL,))))
                    stack.callback(running[-1].end)
            processes = [started.process for started in reversed(running)]
            ending, outputs = monitor(processes, [out, error], limits, self._stopped)
            if ending == "exited" and any(c.group and c.group.ran_out_of_memory for c in running):
                ending = "memory"
        return Finished(ending, processes[0].returncode, *outputs)

    def start(self, command: Command, stdout: int, stderr: int) -> RunningCommand:
        """Starts a command without waiting."""
        try:
            return RunningCommand(command, stdout, stderr, self.unsafe)
        except OSError as error:
            raise SandboxError(f"a program could not be put into its sandbox: {error}") from None


# ---- Watching from outside: time, memory of all processes, and what they write ---------------------------------------

MEMORY_EVERY = 0.05  # seconds; a program fills perhaps 200 MiB in between
PIPE = 2**20  # bytes that a pipe can hold: so much may have been written in time and not been read
INODE = 1024  # bytes that the kernel keeps for an empty file
# The most that it keeps for a pipe or a socket that nobody may enlarge, with what it needs for its lists.
WMEM = Path("/proc/sys/net/core/wmem_default")
SOCKET = int(WMEM.read_text()) if WMEM.exists() else 212992
BUFFERS = {"pipe": 16 * os.sysconf("SC_PAGE_SIZE"), "socket": SOCKET * 3 // 2}


def monitor(
    processes: Sequence[subprocess.Popen[bytes]], pipes: Sequence[int], limits: Limits, stopped: threading.Event
) -> tuple[Ending, list[bytes]]:
    """Waits for the end of the first process, reading what it writes into the pipes; ends nothing itself. The others
    run beside it and count for the memory. Returns how it ended and what each pipe carried."""
    deadline = time.monotonic() + limits.seconds
    read: dict[int, bytearray] = {pipe: bytearray() for pipe in pipes}
    room, roots = limits.output_kib * 1024, [process.pid for process in processes]
    ending: Ending = "exited"
    with selectors.DefaultSelector() as selector, open(os.pidfd_open(roots[0]), "rb", 0) as process:
        for descriptor in (*pipes, process.fileno()):
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map() and ending == "exited":
            if stopped.is_set():
                raise SandboxError("the sandbox was stopped")
            left = deadline - time.monotonic()
            if memory_of(roots) > limits.memory_mib * 2**20:
                ending = "memory"
                break
            for key, _ in selector.select(max(0.0, min(left, MEMORY_EVERY))):
                if key.fd in read and (chunk := os.read(key.fd, PIPE)):
                    read[key.fd] += chunk
                else:  # ended, or closed
                    selector.unregister(key.fd)
            if left <= 0 and selector.get_map():  # only after a last read: we may have been held up, not the program
                ending = "timeout"
            elif sum(map(len, read.values())) > room:
                ending = "output"
    return ending, [bytes(read[pipe][:room]) for pipe in pipes]


def memory_of(roots: Sequence[int]) -> int:
    """Bytes that the processes of these trees hold: memory, page tables, small files and buffers of pipes and sockets.

    Files that are mapped into them do not count. Orphans of a PID namespace become children of its first process, so
    nothing leaves the tree.
    """
    total = 0
    buffers: set[str] = set()
    for process, children in process_tree(roots):
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
    return total + sum(BUFFERS.get(name.partition(":")[0], 0) for name in buffers)


def _files_of(first: int) -> int:
    """What the kernel keeps for the files of a sandbox, beside their content, which the folders' sizes bound."""
    root = f"/proc/{first}/root"
    if not os.path.isdir(f"{root}/box"):  # no sandbox
        return 0
    found = (os.statvfs(f"{root}/{folder}") for folder in ("box", "tmp", "dev/shm"))
    return sum(folder.f_files - folder.f_ffree for folder in found) * INODE
