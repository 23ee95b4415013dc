"""Monitoring running programs from outside: time, memory of all their processes, and what they write."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache

MEMORY_EVERY = 0.05  # seconds; a program fills perhaps 200 MiB in between
PIPE = 2**20  # bytes that a pipe can hold: so much may have been written in time and not been read


class Ending:
    EXITED = "exited"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    OUTPUT = "output"


def monitor(
    processes: Sequence[subprocess.Popen[bytes]],
    pipes: Sequence[int],
    seconds: float,
    memory_mib: int,
    output_kib: int,
) -> tuple[str, list[bytes]]:
    """Waits for the end of the first process, reading what it writes into the pipes; ends nothing itself.

    The other processes run beside it and count for the memory. Returns one of `Ending` and what each pipe carried.
    """
    deadline = time.monotonic() + seconds
    read: dict[int, bytearray] = {pipe: bytearray() for pipe in pipes}
    room = output_kib * 1024
    roots = [process.pid for process in processes]
    ending = Ending.EXITED
    next_check = time.monotonic() + MEMORY_EVERY
    with selectors.DefaultSelector() as selector:
        for pipe in pipes:
            os.set_blocking(pipe, False)
            selector.register(pipe, selectors.EVENT_READ)
        opened = len(pipes)
        while opened:
            now = time.monotonic()
            late = now >= deadline
            if now >= next_check:
                next_check = now + MEMORY_EVERY
                if memory_of(roots) > memory_mib * 2**20:
                    ending = Ending.MEMORY
                    break
            for key, _ in selector.select(max(0.0, min(deadline, next_check) - now)):
                found, closed = _read(key.fd, PIPE if late else 65536)
                read[key.fd] += found
                if closed:
                    selector.unregister(key.fd)
                    opened -= 1
            if late and opened:
                # Only after a last read: we may have been held up, and not the program.
                ending = Ending.TIMEOUT
                break
            if sum(map(len, read.values())) > room:
                ending = Ending.OUTPUT
                break
    # The pipes may be closed long before the program ends.
    while ending == Ending.EXITED:
        with suppress(subprocess.TimeoutExpired):
            processes[0].wait(min(MEMORY_EVERY, max(0.001, deadline - time.monotonic())))
            break
        if time.monotonic() >= deadline:
            ending = Ending.TIMEOUT
        elif memory_of(roots) > memory_mib * 2**20:
            ending = Ending.MEMORY
    return ending, [bytes(read[pipe][:room]) for pipe in pipes]


def _read(pipe: int, most: int) -> tuple[bytearray, bool]:
    """What is in a pipe, about so much of it, and whether its other end is closed."""
    found = bytearray()
    while len(found) < most:
        try:
            chunk = os.read(pipe, 65536)
        except BlockingIOError:
            return found, False
        if not chunk:
            return found, True
        found += chunk
    return found, False


INODE = 1024  # bytes that the kernel keeps for an empty file


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
        with open("/proc/sys/net/core/wmem_default") as file:
            socket = int(file.read())
    except OSError:
        socket = 212992
    return {"pipe": 16 * os.sysconf("SC_PAGE_SIZE"), "socket": socket * 3 // 2}  # with what it needs for its lists


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


def _files_of(first: int) -> int:
    """What the kernel keeps for the files of a sandbox, beside their content, which the folders' sizes bound."""
    root = f"/proc/{first}/root"
    if not os.path.isdir(f"{root}/box"):  # no sandbox
        return 0
    found = (os.statvfs(f"{root}/{folder}") for folder in ("box", "tmp", "dev/shm"))
    return sum(folder.f_files - folder.f_ffree for folder in found) * INODE
