"""The memory that a run could take, as the system tells it."""

from __future__ import annotations

from pathlib import Path

import torch

from ebft.runtime.machine_memory import memory_for

CPU = torch.device("cpu")


def test_what_is_available_and_what_we_hold_ourselves(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "meminfo").write_text("MemTotal:  9000 kB\nMemAvailable:    6000 kB\n")
    (tmp_path / "self" / "status").write_text("Name:\tpython\nVmRSS:\t   1000 kB\n")
    limit, none = tmp_path / "memory.max", tmp_path / "not there"
    limit.write_text("max\n")
    assert memory_for(CPU, tmp_path, (limit, none)) == 7000 * 1024
    limit.write_text(f"{5000 * 1024}\n")
    assert memory_for(CPU, tmp_path, (limit, none)) == 5000 * 1024, "a container may have less than the machine"


def test_a_system_that_does_not_say(tmp_path: Path) -> None:
    assert memory_for(CPU, tmp_path) is None
    (tmp_path / "meminfo").write_text("MemTotal:  9000 kB\n")
    assert memory_for(CPU, tmp_path) is None
