"""`--launcher slurm`: the jobs as one array job, in a file that can be read, changed and submitted by hand."""

from __future__ import annotations

import argparse
import logging
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ebft.errors import ConfigError
from ebft.runtime.files import write_text
from ebft.runtime.launch import ENTRY, PREEMPTED
from ebft.studies.jobs import PROMPT, Job, command_line

logger = logging.getLogger(__name__)
ID_FILE = "slurm-job"
# What a job asks for unless `--slurm name=value` says otherwise.
DEFAULTS = {"ntasks": "1", "gpus-per-task": "1", "requeue": "", "signal": "B:USR1@120"}


class SlurmLauncher:
    def __init__(self, options: argparse.Namespace, kind: str) -> None:
        self.jobs, self.kind = options.jobs, kind
        self.sbatch_options = {"job-name": f"ebft-{kind}", **parse_options(options.slurm, kind)}

    def preview(self, jobs: Sequence[Job]) -> list[str]:
        unfinished = [job for job in jobs if not job.finished]
        if unfinished:
            file = self._write(unfinished)
            logger.info(f"{file}: written and not submitted; `sbatch {file}` does")
        return []

    def launch(
        self,
        ready: Callable[[Sequence[Job]], Sequence[Job]],
        progress: Callable[[Sequence[Job]], None] | None = None,
    ) -> list[Job] | None:
        """Submit what could run now as one job and return at once. What needs its results is for the next call."""
        jobs = ready([])
        if not jobs:
            return []
        if job := queued_job(jobs[0].folder):
            raise ConfigError(f"job {job} of this {self.kind} is still in the queue; wait for it, or `scancel {job}`")
        file = self._write(jobs)
        logger.info(f"{file}: submitted as job {submit(file)}; the same command shows the table later")
        return None

    def _write(self, jobs: Sequence[Job]) -> Path:
        folder = jobs[0].folder
        for job in jobs:
            job.write()
            job.log.parent.mkdir(parents=True, exist_ok=True)
        file = folder / f"{self.kind}.sbatch"
        write_text(file, job_script(jobs, self.sbatch_options, self.jobs))
        return file


def parse_options(given: Sequence[str], kind: str) -> dict[str, str]:
    """`partition=gpu`, `requeue`: options of sbatch without their dashes; `no-requeue` takes the default away."""
    options = dict(DEFAULTS)
    for text in given:
        name, _, value = text.lstrip("-").partition("=")
        if not re.fullmatch(r"[a-z][a-z-]*", name):
            raise ConfigError(
                f"--slurm {text}: write --slurm name=value with an option of sbatch, such as time=08:00:00"
            )
        if name in ("array", "output", "chdir"):
            raise ConfigError(f"--slurm {text}: {name} is decided by ebft {kind}; leave it out")
        if name == "no-requeue":
            options.pop("requeue", None)
        options[name] = value
    return options


def job_script(jobs: Sequence[Job], options: dict[str, str], at_once: int | None) -> str:
    """The text of the array job. A task that is started again resumes from its last checkpoint."""
    logs = jobs[0].log.parent.resolve()
    asked = {
        **options,
        "array": f"0-{len(jobs) - 1}" + (f"%{at_once}" if at_once else ""),
        "output": f"{logs}/%A_%a.log",
    }
    lines = ["#!/bin/bash"]
    lines += [f"#SBATCH --{name}={value}" if value else f"#SBATCH --{name}" for name, value in asked.items()]
    lines += ["", "case $SLURM_ARRAY_TASK_ID in"]
    for number, job in enumerate(jobs):
        lines.append(f"{number}) log={shlex.quote(str(job.log.resolve()))}")
        lines.append(f"   line={shlex.quote(PROMPT + command_line(job))}")
        lines.append(f"   set -- {shlex.join(job.arguments)} ;;")
    python = " ".join(shlex.quote(part) for part in (sys.executable, *ENTRY))
    lines += [
        "esac",
        f"cd {shlex.quote(str(Path.cwd()))}",
        'echo "$line" >> "$log"',
        f'{python} "$@" >> "$log" 2>&1 &',
        "run=$!",
        "# Slurm gives notice before time is up: the run saves a checkpoint and leaves with code 75.",
        "trap 'kill -USR1 $run' USR1 TERM",
        "while kill -0 $run 2> /dev/null; do wait $run; done  # a signal ends a wait early",
        "wait $run",
        "code=$?",
        f'[ $code = {PREEMPTED} ] && scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID"',
        "exit $code",
        "",
    ]
    return "\n".join(lines)


def submit(file: Path) -> str:
    """The number of the job."""
    try:
        done = subprocess.run(["sbatch", "--parsable", str(file)], capture_output=True, text=True)
    except FileNotFoundError:
        raise ConfigError(
            f"there is no sbatch here; submit {file} on a machine that has it, or use --launcher local"
        ) from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ConfigError(f"sbatch refused {file}: {reason}")
    job = done.stdout.strip().partition(";")[0]
    write_text(file.parent / ID_FILE, job + "\n")
    return job


def queued_job(folder: Path) -> str | None:
    """The number of the array job that was submitted last, if it waits or runs."""
    file = folder / ID_FILE
    if not file.is_file():
        return None
    job = file.read_text(encoding="utf-8").strip()
    try:
        done = subprocess.run(["squeue", "--noheader", "--job", job], capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return job if done.returncode == 0 and done.stdout.strip() else None
