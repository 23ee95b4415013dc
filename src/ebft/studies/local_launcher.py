"""`--launcher local`: jobs side by side on this machine, `--per-gpu` on each GPU, or `--jobs` at once on a CPU."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ebft.errors import Preempted
from ebft.runtime.files import LOCK_WAIT
from ebft.runtime.launch import ENTRY, LAUNCHED
from ebft.studies.jobs import PROMPT, Job, command_line, error_in, last_attempt
from ebft.studies.worker import Worker

logger = logging.getLogger(__name__)
_POLL_SECONDS = 0.2


@dataclass
class Place:
    """Where one job at a time runs."""

    gpu: str | None  # None: the CPU
    worker: Worker | None = None  # with --reuse-processes, the process that has run the last job


@dataclass
class RunningJob:
    job: Job
    process: subprocess.Popen[bytes] | Worker
    place: Place
    started: float


class LocalLauncher:
    def __init__(self, options: argparse.Namespace, kind: str) -> None:
        self.jobs, self.per_gpu, self.kind = options.jobs, options.per_gpu, kind
        self.reuse = options.reuse_processes

    def preview(self, jobs: Sequence[Job]) -> list[str]:
        return [f"{job.name}: {'finished' if job.finished else 'to do'}" for job in jobs]

    def launch(
        self,
        ready: Callable[[Sequence[Job]], Sequence[Job]],
        progress: Callable[[Sequence[Job]], None] | None = None,
        then: Callable[[], list[str] | None] = lambda: None,
    ) -> list[Job]:
        """Run everything to its end, also after some jobs have failed; returns those that failed."""
        failed: list[Job] = []
        waiting = list(ready(failed))
        if not waiting:
            return []
        free = [Place(gpu) for gpu in self._gpus(waiting[0].on_cpu)]
        places = len(free)
        started: set[str] = set()
        running: list[RunningJob] = []
        try:
            while waiting or running:
                while waiting and free:
                    at_once = min(places, len(running) + len(waiting))  # who is alone has all cores
                    job = waiting.pop(0)
                    started.add(job.name)
                    running.append(_start(job, free.pop(0), at_once, self.reuse))
                if progress is not None:
                    progress([one.job for one in running])
                time.sleep(_POLL_SECONDS)
                for ended in [r for r in running if r.process.poll() is not None]:
                    running.remove(ended)
                    free.append(ended.place)
                    if not _report(ended):
                        failed.append(ended.job)
                        _dismiss(ended.place)  # whatever is left of it in the process is not for the next
                    waiting = [job for job in ready(failed) if job.name not in started]
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
            for place in free:
                _dismiss(place)
        return failed

    def _gpus(self, on_cpu: bool) -> list[str | None]:
        """One for each job that may run at once; None for the CPU."""
        gpus = [] if on_cpu else visible_gpus()
        every: list[str | None] = [gpu for _ in range(self.per_gpu) for gpu in gpus]
        return every[: self.jobs] if gpus else [None] * (self.jobs or 1)


def visible_gpus() -> list[str]:
    """Names of the GPUs that this process may use, as CUDA_VISIBLE_DEVICES has them."""
    import torch

    count = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return [str(number) for number in range(count)]
    return [name.strip() for name in named.split(",") if name.strip()][:count]


def _start(job: Job, place: Place, at_once: int, reuse: bool) -> RunningJob:
    # A job ends with this process, if that is killed. One of an earlier process may need a moment for it.
    environment = {**os.environ, LAUNCHED: str(os.getpid()), LOCK_WAIT: os.environ.get(LOCK_WAIT, "60")}
    if place.gpu is not None:
        environment["CUDA_VISIBLE_DEVICES"] = place.gpu
    else:
        environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // at_once)))
    job.write()
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with job.log.open("ab") as log:
        log.write(f"{PROMPT}{command_line(job)}\n".encode())
        log.flush()
        process: subprocess.Popen[bytes] | Worker
        if reuse:
            process = place.worker = place.worker or Worker(environment)
            process.begin(list(job.arguments), job.log)
        else:
            process = subprocess.Popen(
                [sys.executable, *ENTRY, *job.arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # Ctrl-C is passed on once, by us
            )
    where = f" on GPU {place.gpu}" if place.gpu is not None else ""
    logger.info(f"{job.name}: started{where}, log in {job.log}")
    return RunningJob(job, process, place, time.monotonic())


def _dismiss(place: Place) -> None:
    if place.worker is not None:
        place.worker.dismiss()
        place.worker = None


def _report(ended: RunningJob) -> bool:
    """Whether it succeeded. If it did not, the log says why in any case: whoever reads it later needs no exit code."""
    job, code, seconds = ended.job, ended.process.returncode, time.monotonic() - ended.started
    assert code is not None
    if code == 0:
        logger.info(f"{job.name}: finished after {seconds:.0f} s")
        return True
    how = f"exit code {code}" if code > 0 else f"killed by signal {-code}"
    lines = last_attempt(job.log)
    reason = error_in(lines)
    if reason is None:
        reason = lines[-1].strip() if lines else ""
        with job.log.open("a", encoding="utf-8") as log:
            log.write(f"\nebft: {how}{': ' if reason else ''}{reason}\n")
    logger.info(f"{job.name}: failed ({how}): {reason}")
    return False
