"""Programs that write or hold too much are ended."""

from __future__ import annotations

import pytest

from ebft.sandbox.command import Limits
from ebft.sandbox.isolation import Sandbox
from tests.sandbox.sandboxed import SMALL, needs_sandbox


@needs_sandbox
def test_output_is_bounded() -> None:
    finished = Sandbox().run(["sh", "-c", "yes"], limits=SMALL)
    assert finished.ending == "output"
    assert len(finished.stdout) <= SMALL.output_kib * 1024


@needs_sandbox
def test_all_processes_together_are_bounded() -> None:
    """Each stays below its own limit; the watcher adds them up."""
    grow = "import os, time\nfor _ in range(3):\n    os.fork()\nx = bytearray(b'x' * (100 << 20))\ntime.sleep(60)\n"
    finished = Sandbox().run(["/usr/bin/python3", "-c", grow], limits=Limits(seconds=30.0, memory_mib=256))
    if finished.returncode == 127:
        pytest.skip("no /usr/bin/python3 here")
    assert finished.ending == "memory"
