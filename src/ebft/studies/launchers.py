"""Where the jobs of sweeps and studies run: side by side on this machine, or as one array job of Slurm."""

from __future__ import annotations

import argparse
import logging
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ebft.errors import ConfigError
from ebft.runtime.files import LOCK_WAIT, write_text
from ebft.runtime.launch import ENTRY, LAUNCHED
from ebft.studies.study import PROMPT, Job, Study, last_error

logger = logging.getLogger(__name__)
_POLL_SECONDS = 0.2
ID_FILE = "slurm-job"  # the numbers of the jobs that were submitted last
# What a job of Slurm asks for unless `--slurm name=value` says otherwise.
SLURM_DEFAULTS = {"ntasks": "1", "gpus-per-task": "1", "requeue": "", "signal": "B:USR1@120"}
# A task of the array: its command begins its log as PROMPT says, and code 75 is PREEMPTED.
_ARRAY = """#!/bin/bash
{asked}
case $SLURM_ARRAY_TASK_ID in
{tasks}
esac
cd {here}
echo "$ ebft $*" >> "$log"
{entry} "$@" >> "$log" 2>&1 &
run=$!
# Slurm gives notice before time is up: the run saves a checkpoint and leaves with code 75.
trap 'kill -USR1 $run' USR1 TERM
while kill -0 $run 2> /dev/null; do wait $run; done  # a signal ends a wait early
wait $run
code=$?
[ $code = 75 ] && scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID"
exit $code
"""


def run_here(options: argparse.Namespace, ready: Callable[[], list[Job]], failed: set[str]) -> None:
    """Run everything to its end, also after some jobs have failed, whose names are then in `failed`."""
    started: set[str] = set()
    running: list[tuple[Job, subprocess.Popen[bytes], str | None]] = []
    waiting = ready()
    free = _places(options, waiting[0]) if waiting else []
    places = len(free)
    try:
        while waiting or running:
            while waiting and free:
                at_once = min(places, len(running) + len(waiting))  # who is alone has all cores
                job, gpu = waiting.pop(0), free.pop(0)
                started.add(job.name)
                running.append((job, _start(job, gpu, at_once), gpu))
            time.sleep(_POLL_SECONDS)
            for job, process, gpu in [one for one in running if one[1].poll() is not None]:
                running.remove((job, process, gpu))
                free.append(gpu)
                if not _succeeded(job, process.returncode):
                    failed.add(job.name)
                waiting = [job for job in ready() if job.name not in started]
    except BaseException as stop:
        for _, process, _ in running:  # after a scheduler's notice they save a checkpoint first
            process.send_signal(signal.SIGINT if isinstance(stop, KeyboardInterrupt) else signal.SIGTERM)
        for _, process, _ in running:
            process.wait()
        raise


def _places(options: argparse.Namespace, job: Job) -> list[str | None]:
    """One for each job that may run at once: a GPU, by its name in CUDA_VISIBLE_DEVICES, or None for the CPU."""
    import torch

    on_cpu = job.settings.get("use_cpu") or job.settings.get("device") == "cpu"
    count, named = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = map(str, range(count)) if named is None else map(str.strip, named.split(",")[:count])
    every: list[str | None] = [] if on_cpu else [*gpus] * options.per_gpu
    return every[: options.jobs] or [None] * (options.jobs or 1)


def _start(job: Job, gpu: str | None, at_once: int) -> subprocess.Popen[bytes]:
    # A job ends with this process, if that is killed. One of an earlier process may need a moment for it.
    environment = {**os.environ, LAUNCHED: str(os.getpid()), LOCK_WAIT: os.environ.get(LOCK_WAIT, "60")}
    if gpu is not None:
        environment["CUDA_VISIBLE_DEVICES"] = gpu
    else:
        environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // at_once)))
    job.prepare()
    with job.log.open("ab", buffering=0) as log:
        log.write(f"{PROMPT}{job.command}\n".encode())
        command, no = [sys.executable, *ENTRY, *job.arguments], subprocess.DEVNULL
        # In a session of its own: Ctrl-C is passed on once, by us.
        process = subprocess.Popen(command, stdin=no, stdout=log, stderr=log, env=environment, start_new_session=True)
    logger.info(f"{job.name}: started{'' if gpu is None else f' on GPU {gpu}'}, log in {job.log}")
    return process


def _succeeded(job: Job, code: int) -> bool:
    """If it did not, the log says why in any case: whoever reads it later needs no exit code."""
    how = f"exit code {code}" if code > 0 else f"killed by signal {-code}"
    if code and last_error(job.log) is None:
        last = job.log.read_text(encoding="utf-8", errors="replace").splitlines()[-1]
        with job.log.open("a", encoding="utf-8") as log:
            log.write(f"\nebft: {how}: {last}\n")
    logger.info(f"{job.name}: " + (f"failed ({how}): {last_error(job.log)}" if code else "finished"))
    return code == 0


def submit(study: Study, options: argparse.Namespace, jobs: Sequence[Job], following: Sequence[str]) -> None:
    """Submit what could run now as one array job.

    following: the arguments of the command `ebft` that does what waits for the results of these jobs, if anything does.
    A small second job runs it when the array has ended, and so on: a chain.
    """
    known = study.folder / ID_FILE
    if known.exists() and not options.next_stage:  # else it is itself in the queue
        last = known.read_text(encoding="utf-8").strip()
        if {*last.split()} & {*_slurm("squeue", "--me", "--noheader", "--format=%F").split()}:
            raise ConfigError(f"job {last} of this {study.kind} is still in the queue; wait, or `scancel {last}`")
    file = write_array(study, options, jobs)
    numbers = [_slurm("sbatch", "--parsable", str(file))]
    logger.info(f"{file}: submitted as job {numbers[0]}; the same command shows how far it is later")
    if following:
        # It asks for what the array job asks for (partition, account, ...), but for no GPU, and is not run twice.
        given = _asked(study, options)
        asked = {name: value for name, value in given.items() if name not in SLURM_DEFAULTS and "gpu" not in name}
        asked |= {"job-name": f"{given['job-name']}-next", "dependency": f"afterany:{numbers[0]}"}
        asked |= {"output": f"{jobs[0].log.parent}/%j-next.log"}
        asked |= {"wrap": shlex.join((sys.executable, *ENTRY, *following))}
        numbers.append(_slurm("sbatch", "--parsable", *_flags(asked)))
        logger.info(f"job {numbers[1]} waits for it, and then submits what needs the results")
    write_text(known, " ".join(numbers) + "\n")


def write_array(study: Study, options: argparse.Namespace, jobs: Sequence[Job]) -> Path:
    """The array job, in a file that can be read, changed and submitted by hand. A task that is started again resumes
    from its last checkpoint."""
    for job in jobs:
        job.prepare()
    at_once = f"%{options.jobs}" if options.jobs else ""
    asked = {"array": f"0-{len(jobs) - 1}{at_once}", "output": f"{jobs[0].log.parent}/%A_%a.log"}
    tasks = [f"{n}) log={shlex.quote(str(j.log))}\n   set -- {shlex.join(j.arguments)} ;;" for n, j in enumerate(jobs)]
    flags = [f"#SBATCH {flag}" for flag in _flags({**_asked(study, options), **asked})]
    places = {"here": shlex.quote(str(Path.cwd())), "entry": shlex.join((sys.executable, *ENTRY))}
    file = study.folder / f"{study.kind}.sbatch"
    write_text(file, _ARRAY.format(asked="\n".join(flags), tasks="\n".join(tasks), **places))
    return file


def _asked(study: Study, options: argparse.Namespace) -> dict[str, str]:
    """The options of sbatch; of two that exclude each other, such as requeue and no-requeue, it takes the last."""
    given = {name.lstrip("-"): value for name, _, value in (text.partition("=") for text in options.slurm)}
    return {"job-name": f"ebft-{study.kind}", **SLURM_DEFAULTS, **given}


def _flags(asked: dict[str, str]) -> list[str]:
    return [f"--{name}={value}" if value else f"--{name}" for name, value in asked.items()]


def _slurm(*command: str) -> str:
    """What a command of Slurm prints, such as the number of the job that it has submitted."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ConfigError(f"{command[0]} failed: {done.stderr.strip()}")
    return done.stdout.strip().partition(";")[0]
