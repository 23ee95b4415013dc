"""What the sandbox is asked to run, within which limits, and what is left of it."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ebft.sandbox.monitor import Ending
from ebft.sandbox.seccomp import RUNTIME

BOX = "/box"  # the one folder a program may write to
INSIDE = Path(__file__).parent / "inside"  # our own scripts that run in the sandbox
INSIDE_MOUNT = "/ebft"


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
    """
    Args:
        arguments: program and arguments; the current folder is the box.
        limits: what it may use.
        files: what is in the box at the start, by name.
        folders: further folders of the host that a toolchain needs, read-only.
        environment: variables on top of the few that every program has.
        executable: the files may be run but not read, not even by the program itself.
        calls: which system calls it may make (see `seccomp`).
        module: the one of our own that the arguments run (`start_of_module`); the sandbox's first process is a Python
            already, and its child runs it without starting another.
    """

    arguments: Sequence[str]
    limits: Limits
    files: Mapping[str, bytes] = field(default_factory=dict)
    folders: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    executable: bool = False
    calls: str = RUNTIME
    module: str = ""


@dataclass(frozen=True)
class Streams:
    """Where a command reads and writes, and which further descriptors it gets."""

    stdin: int = subprocess.DEVNULL
    stdout: int = subprocess.DEVNULL
    stderr: int = subprocess.DEVNULL
    descriptors: Sequence[int] = ()


@dataclass(frozen=True)
class Finished:
    """What is left of a command: how it ended (see `monitor.Ending`) and what it wrote."""

    ending: str
    returncode: int | None
    stdout: bytes
    stderr: bytes

    @property
    def succeeded(self) -> bool:
        return self.ending == Ending.EXITED and self.returncode == 0
