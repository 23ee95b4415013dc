"""How much memory a run can have on this machine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

# Limits of the container or job that this process is in: of version 2 of cgroups, and of version 1.
CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def memory_for(device: Any, proc: Path = Path("/proc"), limits: tuple[Path, ...] = CGROUP_LIMITS) -> int | None:
    """Bytes of the GPU, or of the RAM that a run could take; None if the system does not say."""
    if device.type == "cuda":
        import torch

        return torch.cuda.get_device_properties(device).total_memory
    try:
        free = _kib(proc / "meminfo", "MemAvailable") + _kib(proc / "self" / "status", "VmRSS")  # ours becomes free
    except OSError:  # not Linux
        return None
    return min(
        [free, *(int(text) for limit in limits if limit.is_file() and (text := limit.read_text().strip()).isdigit())]
    )


def lack_of_gpu_memory(error: BaseException) -> str | None:
    """What there was when a GPU's memory ran out, in one line; None if this is another error. Torch's own words name
    every process, and go on about fragmentation."""
    if type(error).__name__ != "OutOfMemoryError":  # torch.OutOfMemoryError; torch may not be imported
        return None
    said = str(error)
    wanted = re.search(r"Tried to allocate ([\d.]+ \w+)", said)
    capacity = re.search(r"total capacity of ([\d.]+ \w+)", said)
    own = re.search(r"this process has ([\d.]+ \w+) memory in use", said)
    line = f"out of GPU memory: no {wanted[1] if wanted else 'more'} left"
    if capacity:
        line += f" of {capacity[1]}"
    if own:
        line += f", {own[1]} of which this process has"
    return line + (", and other processes use the GPU as well" if re.search(r"Process \d+ has", said) else "")


def _kib(file: Path, name: str) -> int:
    found = re.search(rf"^{name}:\s*(\d+) kB", file.read_text(), flags=re.MULTILINE)
    if found is None:
        raise OSError(f"{file} has no {name}")
    return 1024 * int(found[1])
