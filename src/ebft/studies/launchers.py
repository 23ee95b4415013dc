"""Where the jobs of sweeps and studies run: side by side on this machine, or as one array job of Slurm."""

from __future__ import annotations

import argparse
import logging
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from ebft.errors import ConfigError, Preempted
from ebft.runtime.files import LOCK_WAIT, write_text
from ebft.runtime.launch import ENTRY, LAUNCHED, PREEMPTED
from ebft.studies.jobs import PROMPT, Job, command_line, error_in, last_attempt

logger = logging.getLogger(__name__)
_POLL_SECONDS = 0.2
ID_FILE = "slurm-job"  # the numbers of the jobs that were submitted last
NEXT_STAGE = "--next-stage"  # the option of the command that a chain of jobs runs
# What a job of Slurm asks for unless `--slurm name=value` says otherwise.
SLURM_DEFAULTS = {"ntasks": "1", "gpus-per-task": "1", "requeue": "", "signal": "B:USR1@120"}

Ready = Callable[[Sequence[Job]], Sequence[Job]]  # from the jobs that have failed to all that could run now


def add_arguments(parser: argparse.ArgumentParser, what: str) -> None:
    """`what`: the word for jobs, such as `points`."""
    add = parser.add_argument
    add("--launcher", choices=("local", "slurm"), default="local", help="this machine, or one array job [local]")
    add("--jobs", type=int, default=None, help=f"{what} at once [local: one for each GPU, one on a CPU; slurm: all]")
    add("--per-gpu", type=int, default=1, help=f"{what} at once on each GPU, with the local launcher [1]")
    add("--slurm", action="append", default=[], metavar="NAME=VALUE", help="an option of sbatch, such as time=08:00:00")
    add("--reuse-processes", action="store_true", help=argparse.SUPPRESS)


def add_sweep_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--config", metavar="RECIPE", help="recipe of the runs; may hold a `sweep:` section")
    add("--set", action="append", default=[], metavar="NAME=V,V", help="values of one setting; may be given often")
    add("--command", choices=("train", "sft", "rlvr"), default="train", help="what each point runs [train]")
    add("--dry-run", action="store_true", help="list the points; with slurm, write the job file")
    add_arguments(parser, "points")


def make_launcher(options: argparse.Namespace, kind: str) -> LocalLauncher | SlurmLauncher:
    """kind: `sweep` or `study`, for messages and names of files."""
    if options.reuse_processes:
        raise ConfigError("--reuse-processes is gone: every job is a process of its own; leave it out")
    if min(options.jobs or 1, options.per_gpu) < 1 or options.jobs == 0:
        raise ConfigError("--jobs and --per-gpu are at least 1")
    if options.launcher == "slurm":
        if options.per_gpu > 1:
            raise ConfigError("--per-gpu is for --launcher local: with Slurm, a task is one process; leave it out")
        return SlurmLauncher(kind, options.jobs, options.slurm, getattr(options, "next_stage", False))
    if options.slurm:
        raise ConfigError("--slurm is for --launcher slurm; leave it out")
    return LocalLauncher(options.jobs, options.per_gpu)


class _Running(NamedTuple):
    job: Job
    process: subprocess.Popen[bytes]
    gpu: str | None  # None: the CPU
    started: float


class LocalLauncher:
    """`per_gpu` jobs at once on each GPU, or `jobs` at once on a CPU."""

    def __init__(self, jobs: int | None, per_gpu: int) -> None:
        self.jobs, self.per_gpu = jobs, per_gpu

    def preview(self, jobs: Sequence[Job]) -> list[str]:
        """`--dry-run`: lines to print."""
        return [f"{job.name}: {'finished' if job.finished else 'to do'}" for job in jobs]

    def launch(self, ready: Ready, then: Callable[[], list[str] | None] = lambda: None) -> list[Job]:
        """Run everything to its end, also after some jobs have failed; returns those that failed."""
        failed: list[Job] = []
        started: set[str] = set()
        running: list[_Running] = []
        waiting = list(ready(failed))
        free = self._places(waiting[0].on_cpu) if waiting else []
        places = len(free)
        try:
            while waiting or running:
                while waiting and free:
                    at_once = min(places, len(running) + len(waiting))  # who is alone has all cores
                    started.add(waiting[0].name)
                    running.append(_start(waiting.pop(0), free.pop(0), at_once))
                time.sleep(_POLL_SECONDS)
                for ended in [one for one in running if one.process.poll() is not None]:
                    running.remove(ended)
                    free.append(ended.gpu)
                    if not _succeeded(ended):
                        failed.append(ended.job)
                    waiting = [job for job in ready(failed) if job.name not in started]
        except (KeyboardInterrupt, Preempted) as stop:
            for one in running:  # after a scheduler's notice they save a checkpoint first
                one.process.send_signal(signal.SIGINT if isinstance(stop, KeyboardInterrupt) else signal.SIGTERM)
            for one in running:
                one.process.wait()
            raise
        finally:
            for one in running:
                if one.process.poll() is None:
                    one.process.terminate()
        return failed

    def _places(self, on_cpu: bool) -> list[str | None]:
        """One for each job that may run at once: a GPU, or None for the CPU."""
        every: list[str | None] = [gpu for _ in range(self.per_gpu) for gpu in ([] if on_cpu else visible_gpus())]
        return every[: self.jobs] or [None] * (self.jobs or 1)


def visible_gpus() -> list[str]:
    """Names of the GPUs that this process may use, as CUDA_VISIBLE_DEVICES has them."""
    import torch

    count = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    every = map(str, range(count)) if named is None else (name.strip() for name in named.split(","))
    return [name for name in every if name][:count]


def _start(job: Job, gpu: str | None, at_once: int) -> _Running:
    # A job ends with this process, if that is killed. One of an earlier process may need a moment for it.
    environment = {**os.environ, LAUNCHED: str(os.getpid()), LOCK_WAIT: os.environ.get(LOCK_WAIT, "60")}
    if gpu is not None:
        environment["CUDA_VISIBLE_DEVICES"] = gpu
    else:
        environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // at_once)))
    job.write()
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with job.log.open("ab") as log:
        log.write(f"{PROMPT}{command_line(job)}\n".encode())
        log.flush()
        process = subprocess.Popen(
            [sys.executable, *ENTRY, *job.arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # Ctrl-C is passed on once, by us
        )
    logger.info(f"{job.name}: started{'' if gpu is None else f' on GPU {gpu}'}, log in {job.log}")
    return _Running(job, process, gpu, time.monotonic())


def _succeeded(ended: _Running) -> bool:
    """If it did not, the log says why in any case: whoever reads it later needs no exit code."""
    job, code = ended.job, ended.process.returncode
    if code == 0:
        logger.info(f"{job.name}: finished after {time.monotonic() - ended.started:.0f} s")
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


class SlurmLauncher:
    """An array job, in a file that can be read, changed and submitted by hand.

    Where more waits for the results, a small second job runs the command again when the array has ended: a chain.
    """

    def __init__(self, kind: str, jobs: int | None, options: Sequence[str], in_chain: bool) -> None:
        self.kind, self.jobs, self.in_chain = kind, jobs, in_chain
        self.options = {"job-name": f"ebft-{kind}", **SLURM_DEFAULTS}
        for text in options:
            name, _, value = text.lstrip("-").partition("=")
            if not re.fullmatch(r"[a-z][a-z-]*", name) or name in ("array", "output", "chdir", "dependency"):
                raise ConfigError(f"--slurm {text}: no option of sbatch that can be given here, such as time=08:00:00")
            if name == "no-requeue":
                self.options.pop("requeue", None)
            self.options[name] = value

    def preview(self, jobs: Sequence[Job]) -> list[str]:
        """`--dry-run`: writes the job file and does not submit it."""
        unfinished = [job for job in jobs if not job.finished]
        return [f"written and not submitted: sbatch {self._write(unfinished)}"] if unfinished else []

    def launch(self, ready: Ready, then: Callable[[], list[str] | None] = lambda: None) -> list[Job] | None:
        """Submit what could run now as one job and return at once; None: jobs run later.

        then: the arguments of the command `ebft` that does what waits for the results of these jobs; None if nothing.
        """
        if not (jobs := ready([])):
            return []
        folder = jobs[0].study.folder
        # A job of the chain is itself in the queue, and began when the others had ended.
        if not self.in_chain and (queued := _queued(folder)):
            raise ConfigError(f"job {queued} of this {self.kind} is still in the queue; wait, or `scancel {queued}`")
        file = self._write(jobs)
        submitted = [_submit(file)]
        logger.info(f"{file}: submitted as job {submitted[0]}; the same command shows the table later")
        if (arguments := then()) is not None:
            after = folder / f"{self.kind}-next.sbatch"
            write_text(after, self._next(arguments, submitted[0], jobs[0].log.parent.resolve()))
            submitted.append(_submit(after))
            logger.info(f"{after}: submitted as job {submitted[1]}, which then submits what needs the results")
        write_text(folder / ID_FILE, " ".join(submitted) + "\n")
        return None

    def _write(self, jobs: Sequence[Job]) -> Path:
        """The array job. A task that is started again resumes from its last checkpoint."""
        for job in jobs:
            job.write()
            job.log.parent.mkdir(parents=True, exist_ok=True)
            job.log.touch()  # it was tried, even if Slurm never comes to run it
        array = f"0-{len(jobs) - 1}" + (f"%{self.jobs}" if self.jobs else "")
        lines = [*_head({**self.options, "array": array, "output": f"{jobs[0].log.parent.resolve()}/%A_%a.log"})]
        lines.append("case $SLURM_ARRAY_TASK_ID in")
        for number, job in enumerate(jobs):
            lines.append(f"{number}) log={shlex.quote(str(job.log.resolve()))}")
            lines.append(f"   line={shlex.quote(PROMPT + command_line(job))}")
            lines.append(f"   set -- {shlex.join(job.arguments)} ;;")
        lines += [
            "esac",
            f"cd {shlex.quote(str(Path.cwd()))}",
            'echo "$line" >> "$log"',
            f'{shlex.join((sys.executable, *ENTRY))} "$@" >> "$log" 2>&1 &',
            "run=$!",
            "# Slurm gives notice before time is up: the run saves a checkpoint and leaves with code 75.",
            "trap 'kill -USR1 $run' USR1 TERM",
            "while kill -0 $run 2> /dev/null; do wait $run; done  # a signal ends a wait early",
            "wait $run",
            "code=$?",
            f'[ $code = {PREEMPTED} ] && scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID"',
            "exit $code",
        ]
        file = jobs[0].study.folder / f"{self.kind}.sbatch"
        write_text(file, "\n".join([*lines, ""]))
        return file

    def _next(self, arguments: Sequence[str], after: str, logs: Path) -> str:
        """The job that runs the command again when the array job `after` has ended, however it has.

        It asks for what the array job asks for (partition, account, ...), but for no GPU, and is not run twice.
        """
        asked = {
            name: value for name, value in self.options.items() if name not in SLURM_DEFAULTS and "gpu" not in name
        }
        asked |= {"job-name": f"{self.options['job-name']}-next", "ntasks": "1", "dependency": f"afterany:{after}"}
        command = shlex.join((sys.executable, *ENTRY, *arguments))
        return "\n".join(
            [*_head({**asked, "output": f"{logs}/%j-next.log"}), f"cd {shlex.quote(str(Path.cwd()))}", command, ""]
        )


def _head(options: dict[str, str]) -> list[str]:
    asked = [f"#SBATCH --{name}={value}" if value else f"#SBATCH --{name}" for name, value in options.items()]
    return ["#!/bin/bash", *asked, ""]


def _submit(file: Path) -> str:
    """The number of the job."""
    try:
        done = subprocess.run(["sbatch", "--parsable", str(file)], capture_output=True, text=True)
    except FileNotFoundError:
        raise ConfigError(f"there is no sbatch here; submit {file} where there is, or use --launcher local") from None
    if done.returncode:
        raise ConfigError(f"sbatch refused {file}: {done.stderr.strip().rpartition(chr(10))[2]}")
    return done.stdout.strip().partition(";")[0]


def _queued(folder: Path) -> str:
    """The numbers of the jobs that were submitted last, if one of them waits or runs."""
    if not (folder / ID_FILE).is_file():
        return ""
    numbers = (folder / ID_FILE).read_text(encoding="utf-8").split()
    try:
        done = subprocess.run(["squeue", "--noheader", "--job", ",".join(numbers)], capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return " ".join(numbers) if done.returncode == 0 and done.stdout.strip() else ""
