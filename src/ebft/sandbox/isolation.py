"""Running programs that a model wrote.

A program runs under bubblewrap: its own namespaces (no network, no other processes), a file system made of read-only
toolchain folders and one sized folder in memory, an empty environment, no capabilities, an unprivileged user, resource
limits, and a list of system calls (`inside/init.py` sets these). A monitor outside ends it when it takes too long,
holds too much memory or writes too much. If the sandbox cannot start, nothing runs. `docs/sandbox.md` says what this
does not defend against.

This file knows nothing about tests; whether a program is right is decided in `isolated_tests.py`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from ebft.errors import SandboxError
from ebft.sandbox import cgroups
from ebft.sandbox.bubblewrap import Gate, bubblewrap_line, bubblewrap_version, limits_line
from ebft.sandbox.command import BOX, INSIDE, INSIDE_MOUNT, Command, Finished, Limits, Streams
from ebft.sandbox.interpreter import compile_modules
from ebft.sandbox.monitor import Ending, monitor
from ebft.sandbox.seccomp import RUNTIME

UNSAFE_HINT = "or pass --unsafe-exec to run model-written programs with your own rights"


@dataclass(eq=False)
class RunningCommand:
    process: subprocess.Popen[bytes]
    gate: Gate | None  # None without a sandbox
    on_end: Callable[[RunningCommand], None]

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
        self.on_end(self)


def monitor_commands(
    commands: Sequence[RunningCommand], pipes: Sequence[int], seconds: float, memory_mib: int, output_kib: int
) -> tuple[str, list[bytes]]:
    """Waits for the end of the first, as `monitor` does; what the kernel has ended for its memory counts as such."""
    processes = [command.process for command in commands]
    ending, outputs = monitor(processes, pipes, seconds, memory_mib, output_kib)
    out_of_memory = ending == Ending.EXITED and any(command.ran_out_of_memory for command in commands)
    return Ending.MEMORY if out_of_memory else ending, outputs


@dataclass(eq=False)
class Sandbox:
    """Runs commands in a sandbox. One object may be used by many threads.

    Args:
        unsafe: run without bubblewrap: resource limits, a clean environment and a time limit, nothing more.
        limits: of commands that have none of their own.
    """

    unsafe: bool = False
    limits: Limits = field(default_factory=Limits)
    _checked: bool = field(default=False, init=False, repr=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, init=False, repr=False)
    _running: list[RunningCommand] = field(default_factory=list, init=False, repr=False)
    _stopped: bool = field(default=False, init=False, repr=False)

    @property
    def scripts(self) -> str:
        """The folder of our own scripts (`inside/`), as a program in the sandbox sees it."""
        return str(INSIDE) if self.unsafe else INSIDE_MOUNT

    @property
    def control_groups(self) -> bool:
        """Whether every program gets one."""
        return not self.unsafe and cgroups.home() is not None

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
            compile_modules()
            if not self.unsafe:
                self._check_programs()
            self._checked = True

    def _check_programs(self) -> None:
        for program, package in (("bwrap", "bubblewrap"), ("prlimit", "util-linux")):
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
        probe = self._run(Command(["/usr/bin/env", "true"], replace(self.limits, seconds=30.0)))
        if not probe.succeeded:
            said = " ".join(probe.stderr.decode(errors="replace").split())[:300] or f"exit code {probe.returncode}"
            raise SandboxError(
                f"bubblewrap is installed but cannot start here ({said}); unprivileged user namespaces may be switched "
                f"off, or a container may forbid mounts; allow them, {UNSAFE_HINT}"
            )

    def run(
        self,
        arguments: Sequence[str],
        files: Mapping[str, bytes] | None = None,
        limits: Limits | None = None,
        folders: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        executable: bool = False,
        calls: str = RUNTIME,
    ) -> Finished:
        """Runs a program in a fresh box and waits for its end; the arguments are those of `Command`."""
        self.check()
        limits = limits or self.limits
        return self._run(Command(arguments, limits, files or {}, folders, environment or {}, executable, calls))

    def _run(self, command: Command) -> Finished:
        out_read, out_write = os.pipe()
        error_read, error_write = os.pipe()
        opened = [out_read, out_write, error_read, error_write]
        try:
            with self.host_folder() as folder:
                started = self.start(command, Streams(stdout=out_write, stderr=error_write), folder)
                try:
                    for descriptor in (out_write, error_write):
                        os.close(descriptor)
                        opened.remove(descriptor)
                    limits = command.limits
                    ending, outputs = monitor_commands(
                        [started], [out_read, error_read], limits.seconds, limits.memory_mib, limits.output_kib
                    )
                finally:
                    started.end()
        finally:
            for descriptor in opened:
                os.close(descriptor)
        return Finished(ending, started.process.returncode, outputs[0], outputs[1])

    @contextmanager
    def host_folder(self) -> Iterator[str | None]:
        """The folder on the host that is the box of unsafe runs; None for safe ones, whose box is in memory."""
        if self.unsafe:
            with tempfile.TemporaryDirectory(prefix="ebft-") as folder:
                yield folder
        else:
            yield None

    def start(self, command: Command, streams: Streams, folder: str | None) -> RunningCommand:
        """Starts a command without waiting. `folder` comes from `host_folder`."""
        variables = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": BOX, "TMPDIR": BOX}
        variables |= dict(command.environment)
        opened: list[int] = []
        gate = None if self.unsafe else Gate(self._group(command.limits))
        try:
            if gate is None:
                assert folder is not None
                variables |= {"HOME": folder, "TMPDIR": folder}
                _write_files(Path(folder), command)
                line = limits_line(command.limits, streams.descriptors)
                line += [word.replace(BOX, folder) for word in command.arguments]
            else:
                line, opened = bubblewrap_line(command, variables, gate, streams.descriptors)
            process = subprocess.Popen(
                line,
                stdin=streams.stdin,
                stdout=streams.stdout,
                stderr=streams.stderr,
                env=variables,
                cwd=folder if self.unsafe else "/",
                pass_fds=(*streams.descriptors, *opened, *((*gate.inside, gate.info) if gate else ())),
                start_new_session=True,  # Ctrl-C is for us: a program that it ended would be taken for a wrong one
            )
        except BaseException:
            if gate is not None:
                gate.give_up()
            raise
        finally:
            for descriptor in opened:
                os.close(descriptor)
        return self._admit(RunningCommand(process, gate, self._forget))

    def _group(self, limits: Limits) -> cgroups.Group | None:
        """A control group for one program, where we can make some."""
        home = cgroups.home()
        try:
            return None if home is None else cgroups.Group(home, limits)
        except OSError as error:
            raise SandboxError(f"no control group can be made in {home} any more: {error.strerror}") from None

    def _admit(self, started: RunningCommand) -> RunningCommand:
        """Lets a command that waits at its gate begin, unless the sandbox was stopped meanwhile."""
        with self._lock:
            self._running.append(started)
        try:
            if started.gate is not None:
                started.gate.open()
        except OSError as error:
            started.end()
            raise SandboxError(f"a program could not be put into its sandbox: {error}") from None
        except BaseException:
            started.end()
            raise
        if self._stopped:
            started.end()
            raise SandboxError("the sandbox was stopped")
        return started

    def _forget(self, ended: RunningCommand) -> None:
        with self._lock, suppress(ValueError):
            self._running.remove(ended)


def _write_files(folder: Path, command: Command) -> None:
    for name, content in command.files.items():
        path = folder / name
        path.write_bytes(content)
        path.chmod(0o755 if command.executable else 0o644)
