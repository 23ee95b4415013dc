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
from typing import NamedTuple

from ebft.errors import ConfigError, Preempted
from ebft.runtime.files import LOCK_WAIT, write_text
from ebft.runtime.launch import ENTRY, LAUNCHED, PREEMPTED
from ebft.studies.jobs import PROMPT, Job, command_line, last_attempt, last_error

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


def make_launcher(options: argparse.Namespace, kind: str) -> Launcher:
    """kind: `sweep` or `study`, for messages and names of files."""
    if options.per_gpu < 1 or (options.jobs is not None and options.jobs < 1):
        raise ConfigError("--jobs and --per-gpu are at least 1")
    if options.launcher == "slurm":
        return SlurmLauncher(kind, options.jobs, options.slurm, getattr(options, "next_stage", False))
    if options.slurm:
        raise ConfigError("--slurm is for --launcher slurm; leave it out")
    return LocalLauncher(options.jobs, options.per_gpu)


# ---- this machine --------------------------------------------------------------------------------------------------


class _Running(NamedTuple):
    job: Job
    process: subprocess.Popen[bytes]
    gpu: str | None  # None: the CPU
    started: float


class LocalLauncher:
    """`per_gpu` jobs at once on each GPU, or `jobs` at once on a CPU."""

    def __init__(self, jobs: int | None, per_gpu: int) -> None:
        self.jobs, self.per_gpu = jobs, per_gpu

    def launch(self, ready: Ready, then: Callable[[], list[str] | None]) -> list[Job]:
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

    numbers = [str(number) for number in range(torch.cuda.device_count())]
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return numbers if named is None else [name.strip() for name in named.split(",")][: len(numbers)]


def _start(job: Job, gpu: str | None, at_once: int) -> _Running:
    # A job ends with this process, if that is killed. One of an earlier process may need a moment for it.
    environment = {**os.environ, LAUNCHED: str(os.getpid()), LOCK_WAIT: os.environ.get(LOCK_WAIT, "60")}
    if gpu is not None:
        environment["CUDA_VISIBLE_DEVICES"] = gpu
    else:
        environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // at_once)))
    job.prepare()
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
    if last_error(job.log) is None:
        last = "".join(last_attempt(job.log)[-1:])
        with job.log.open("a", encoding="utf-8") as log:
            log.write(f"\nebft: {how}: {last}\n")
    logger.info(f"{job.name}: failed ({how}): {last_error(job.log)}")
    return False


# ---- Slurm ---------------------------------------------------------------------------------------------------------


class SlurmLauncher:
    """An array job, in a file that can be read, changed and submitted by hand.

    Where more waits for the results, a small second job runs the command again when the array has ended: a chain.
    """

    def __init__(self, kind: str, jobs: int | None, options: Sequence[str], in_chain: bool) -> None:
        self.kind, self.jobs, self.in_chain = kind, jobs, in_chain
        given = {name.lstrip("-"): value for name, _, value in (text.partition("=") for text in options)}
        self.options = {"job-name": f"ebft-{kind}", **SLURM_DEFAULTS, **given}
        if "no-requeue" in given:
            del self.options["requeue"]

    def launch(self, ready: Ready, then: Callable[[], list[str] | None]) -> list[Job] | None:
        """Submit what could run now as one job and return at once; None: jobs run later.

        then: the arguments of the command `ebft` that does what waits for the results of these jobs; None if nothing.
        """
        if not (jobs := ready([])):
            return []
        folder, logs = jobs[0].study.folder, jobs[0].log.parent.resolve()
        if (folder / ID_FILE).exists() and not self.in_chain:  # a job of the chain is itself in the queue
            last = (folder / ID_FILE).read_text(encoding="utf-8").strip()
            if {*last.split()} & {*_slurm("squeue", "--me", "--noheader", "--format=%F").split()}:
                raise ConfigError(f"job {last} of this {self.kind} is still in the queue; wait, or `scancel {last}`")
        file = self.write(jobs)
        numbers = [_submit(str(file))]
        logger.info(f"{file}: submitted as job {numbers[0]}; the same command shows the table later")
        if (arguments := then()) is not None:
            # It asks for what the array job asks for (partition, account, ...), but for no GPU, and is not run twice.
            asked = {n: value for n, value in self.options.items() if n not in SLURM_DEFAULTS and "gpu" not in n}
            asked |= {"job-name": f"{self.options['job-name']}-next", "dependency": f"afterany:{numbers[0]}"}
            command = shlex.join((sys.executable, *ENTRY, *arguments))
            numbers.append(_submit(*_flags({**asked, "output": f"{logs}/%j-next.log", "wrap": command})))
            logger.info(f"job {numbers[1]} waits for it, and then submits what needs the results")
        write_text(folder / ID_FILE, " ".join(numbers) + "\n")
        return None

    def write(self, jobs: Sequence[Job]) -> Path:
        """The file of the array job. A task that is started again resumes from its last checkpoint."""
        tasks = []
        for number, job in enumerate(jobs):
            job.prepare()
            log = shlex.quote(str(job.log.resolve()))
            tasks += [f"{number}) log={log}", f"   set -- {shlex.join(job.arguments)} ;;"]
        at_once = f"%{self.jobs}" if self.jobs else ""
        asked = {"array": f"0-{len(jobs) - 1}{at_once}", "output": f"{jobs[0].log.parent.resolve()}/%A_%a.log"}
        lines = [
            "#!/bin/bash",
            *(f"#SBATCH {flag}" for flag in _flags({**self.options, **asked})),
            "case $SLURM_ARRAY_TASK_ID in",
            *tasks,
            "esac",
            f"cd {shlex.quote(str(Path.cwd()))}",
            f'echo "{PROMPT}ebft $*" >> "$log"',
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


def _flags(options: dict[str, str]) -> list[str]:
    return [f"--{name}={value}" if value else f"--{name}" for name, value in options.items()]


def _submit(*arguments: str) -> str:
    """The number of the job."""
    return _slurm("sbatch", "--parsable", *arguments).partition(";")[0]


def _slurm(*command: str) -> str:
    """What a command of Slurm prints."""
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        raise ConfigError(f"there is no {command[0]} here; use --launcher local, or --dry-run for the file") from None
    if done.returncode:
        raise ConfigError(f"{command[0]} refused: {done.stderr.strip().rpartition(chr(10))[2]}")
    return done.stdout.strip()


Launcher = LocalLauncher | SlurmLauncher
