"""`--launcher local`: points side by side on this machine, one at a time on each GPU, or `--jobs` at once on a CPU."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ebft.errors import Preempted
from ebft.runtime.launch import ENTRY, LAUNCHED
from ebft.studies.points import Point

logger = logging.getLogger(__name__)
_POLL_SECONDS = 0.2


@dataclass
class RunningPoint:
    point: Point
    process: subprocess.Popen[bytes]
    gpu: str | None  # the GPU it has to itself
    started: float
    log_start: int  # where in the log this attempt begins


class LocalLauncher:
    def __init__(self, options: argparse.Namespace) -> None:
        self.command, self.jobs = options.command, options.jobs

    def preview(self, points: Sequence[Point]) -> list[str]:
        return [f"{point.name}: {'finished' if point.finished else 'to do'}" for point in points]

    def launch(self, unfinished: Sequence[Point]) -> list[Point]:
        """Run all points to their ends, also after some have failed; returns those that failed."""
        for point in unfinished:
            point.write()
        gpus = [] if unfinished[0].given.get("use_cpu") else visible_gpus()
        free: list[str | None] = [*gpus[: self.jobs]] if gpus else [None] * (self.jobs or 1)
        threads = None if gpus else max(1, (os.cpu_count() or 1) // len(free))
        waiting, failed = list(unfinished), []
        running: list[RunningPoint] = []
        try:
            while waiting or running:
                while waiting and free:
                    running.append(_start(waiting.pop(0), self.command, free.pop(0), threads))
                time.sleep(_POLL_SECONDS)
                for ended in [r for r in running if r.process.poll() is not None]:
                    running.remove(ended)
                    free.append(ended.gpu)
                    if not _report(ended):
                        failed.append(ended.point)
        except (KeyboardInterrupt, Preempted) as stop:
            # After a scheduler's notice they save a checkpoint first.
            for one in running:
                one.process.send_signal(signal.SIGINT if isinstance(stop, KeyboardInterrupt) else signal.SIGTERM)
            for one in running:
                one.process.wait()
            raise
        finally:
            for one in running:
                if one.process.poll() is None:
                    one.process.terminate()
        return failed


def visible_gpus() -> list[str]:
    """Names of the GPUs that this process may use, as CUDA_VISIBLE_DEVICES has them."""
    import torch

    count = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return [str(number) for number in range(count)]
    return [name.strip() for name in named.split(",") if name.strip()][:count]


def _start(point: Point, command: str, gpu: str | None, threads: int | None) -> RunningPoint:
    environment = {**os.environ, LAUNCHED: "1"}  # ends with this process, if that is killed
    if gpu is not None:
        environment["CUDA_VISIBLE_DEVICES"] = gpu
    if threads is not None:
        environment.setdefault("OMP_NUM_THREADS", str(threads))
    point.log.parent.mkdir(parents=True, exist_ok=True)
    with point.log.open("ab") as log:
        log_start = log.tell()
        process = subprocess.Popen(
            # --resume starts from the beginning where there is no checkpoint.
            [sys.executable, *ENTRY, command, "--config", str(point.recipe), "--resume"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # Ctrl-C is passed on once, by us
        )
    where = f" on GPU {gpu}" if gpu is not None else ""
    logger.info(f"{point.name}: started{where}, log in {point.log}")
    return RunningPoint(point, process, gpu, time.monotonic(), log_start)


def _report(ended: RunningPoint) -> bool:
    """Whether it succeeded."""
    point, code, seconds = ended.point, ended.process.returncode, time.monotonic() - ended.started
    if code == 0:
        logger.info(f"{point.name}: finished after {seconds:.0f} s")
        return True
    lines = point.log.read_bytes()[ended.log_start :].decode(errors="replace").strip().splitlines()
    # The first error message is the cause; the last line, if there is none.
    reason = next((line for line in lines if line.startswith("ebft: ")), lines[-1] if lines else "")
    how = f"exit code {code}" if code > 0 else f"killed by signal {-code}"
    logger.info(f"{point.name}: failed ({how}): {reason.removeprefix('ebft: ')}")
    return False
