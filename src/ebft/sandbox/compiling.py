"""Compiling in a sandbox of its own, in which there are neither tests nor other answers."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path

from ebft.sandbox.command import Limits
from ebft.sandbox.isolated_tests import FAILED, Outcome, one_line
from ebft.sandbox.isolation import Sandbox
from ebft.sandbox.languages import locate
from ebft.sandbox.monitor import Ending
from ebft.sandbox.seccomp import TOOLCHAIN

COMPILING = Limits(
    seconds=60.0,
    memory_mib=3072,
    processes=128,
    disk_mib=512,
    output_kib=96 * 1024,
    open_files=256,
    reserves_addresses=True,
)


CPP = "g++ -std=c++17 -w"


class CompileFailure(Exception):
    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.message)
        self.outcome = outcome


def compile_in_box(sandbox: Sandbox, script: str, files: dict[str, str | bytes], *programs: str) -> bytes:
    """What a shell script in a box with these files writes to its standard output."""
    folders: tuple[str, ...] = ()
    places: list[str] = []
    for program in programs:
        found, needed = locate(program)
        folders += needed
        places += [str(Path(found).parent)] if needed else []
    contents = {
        name: content if isinstance(content, bytes) else content.encode("utf-8", "replace")
        for name, content in files.items()
    }
    path = ":".join([*places, "/usr/local/bin", "/usr/bin", "/bin"])
    finished = sandbox.run(["sh", "-ec", script], contents, COMPILING, folders, {"PATH": path}, calls=TOOLCHAIN)
    if finished.ending == Ending.TIMEOUT:
        raise CompileFailure(Outcome(FAILED, f"compiling was not finished after {COMPILING.seconds:g} s"))
    if finished.ending != Ending.EXITED:
        raise CompileFailure(Outcome(FAILED, f"compiling used too much {finished.ending}"))
    if finished.returncode != 0:
        said = finished.stderr[: 64 * 1024].decode("utf-8", "replace")
        raise CompileFailure(Outcome(FAILED, one_line(f"does not compile: {_first_error(said)}")))
    return finished.stdout


def _first_error(said: str) -> str:
    lines = [line for line in said.strip().splitlines() if not line.startswith("#")]
    return next((line for line in lines if "error" in line.lower()), lines[0] if lines else "no message")


_kept: OrderedDict[Hashable, bytes] = OrderedDict()
_lock = threading.Lock()


def compiled_once(key: Hashable, make: Callable[[], bytes]) -> bytes:
    """What does not depend on the answer: half of all time went into it, so it is kept for the next answers."""
    with _lock:
        if key in _kept:
            _kept.move_to_end(key)
            return _kept[key]
    made = make()
    with _lock:
        _kept[key] = made
        while len(_kept) > 64:
            _kept.popitem(last=False)
    return made
