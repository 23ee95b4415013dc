"""`--launcher local`: points side by side on this machine, one at a time on each GPU, or `--jobs` at once on a CPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ebft.runtime.launch import ENTRY, LAUNCHED
from ebft.studies.points import Point

_LOOK_EVERY = 0.2  # seconds


@dataclass
class Running:
    point: Point
    process: subprocess.Popen[bytes]
    place: str | None  # the GPU it has to itself
    started: float
    log_from: int  # where in the log this attempt begins


def run_points(points: Sequence[Point], command: str, jobs: int | None = None, use_cpu: bool = False) -> list[Point]:
    """Run all points, whatever becomes of the others; returns those that failed."""
    free: list[str | None] = list(gpus() if not use_cpu else [])
    on_cpu = not free
    free = free[:jobs] if free else [None] * (jobs or 1)
    cores = max(1, (os.cpu_count() or 1) // len(free))
    waiting, failed = list(points), []
    running: list[Running] = []
    try:
        while waiting or running:
            while waiting and free:
                running.append(_start(waiting.pop(0), command, free.pop(0), cores if on_cpu else None))
            time.sleep(_LOOK_EVERY)
            for ended in [r for r in running if r.process.poll() is not None]:
                running.remove(ended)
                free.append(ended.place)
                if not _report(ended):
                    failed.append(ended.point)
    except KeyboardInterrupt:
        for one in running:
            one.process.send_signal(signal.SIGINT)
        for one in running:
            one.process.wait()
        raise
    finally:
        for one in running:
            if one.process.poll() is None:
                one.process.terminate()
    return failed


def gpus() -> list[str]:
    """Names of the GPUs that this process may use, as CUDA_VISIBLE_DEVICES has them."""
    count = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return [str(number) for number in range(count)]
    return [name.strip() for name in named.split(",") if name.strip()][:count]


def command_of(point: Point, command: str) -> list[str]:
    """--resume starts from the beginning where there is no checkpoint."""
    return [sys.executable, *ENTRY, command, "--config", str(point.recipe), "--resume"]


def _start(point: Point, command: str, place: str | None, cores: int | None) -> Running:
    environment = {**os.environ, LAUNCHED: "1"}  # ends with this process, if that is killed
    if place is not None:
        environment["CUDA_VISIBLE_DEVICES"] = place
    if cores is not None:
        environment.setdefault("OMP_NUM_THREADS", str(cores))
    point.log.parent.mkdir(parents=True, exist_ok=True)
    with point.log.open("ab") as log:
        log_from = log.tell()
        # In a session of its own: Ctrl-C is passed on once, by us.
        process = subprocess.Popen(
            command_of(point, command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    where = f" on GPU {place}" if place is not None else ""
    print(f"{point.name}: started{where}, log in {point.log}", file=sys.stderr, flush=True)
    return Running(point, process, place, time.monotonic(), log_from)


def _report(ended: Running) -> bool:
    point, code, seconds = ended.point, ended.process.returncode, time.monotonic() - ended.started
    if code == 0:
        print(f"{point.name}: finished after {seconds:.0f} s", file=sys.stderr, flush=True)
        return True
    lines = point.log.read_bytes()[ended.log_from :].decode(errors="replace").strip().splitlines()
    said = next((line for line in lines if line.startswith("ebft: ")), lines[-1] if lines else "")  # the first: why
    how = f"exit code {code}" if code > 0 else f"killed by signal {-code}"
    print(f"{point.name}: failed ({how}): {said.removeprefix('ebft: ')}", file=sys.stderr, flush=True)
    return False
