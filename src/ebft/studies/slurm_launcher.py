"""`--launcher slurm`: the jobs as one array job, in a file that can be read, changed and submitted by hand.

Where more waits for the results, a small second job runs the command again when the array has ended: a chain of stages.
"""

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
ID_FILE = "slurm-job"  # the numbers of the jobs that were submitted last
PROGRAM = ENTRY  # what runs the command itself again
# What a job asks for unless `--slurm name=value` says otherwise.
DEFAULTS = {"ntasks": "1", "gpus-per-task": "1", "requeue": "", "signal": "B:USR1@120"}


class SlurmLauncher:
    def __init__(self, options: argparse.Namespace, kind: str) -> None:
        self.jobs, self.kind = options.jobs, kind
        self.in_chain = getattr(options, "next_stage", False)
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
        then: Callable[[], list[str] | None] = lambda: None,
    ) -> list[Job] | None:
        """Submit what could run now as one job and return at once; and a job for what needs its results."""
        jobs = ready([])
        if not jobs:
            return []
        folder = jobs[0].folder
        # A job of the chain is itself in the queue, and began when the others had ended.
        if not self.in_chain and (queued := queued_jobs(folder)):
            numbers = " ".join(queued)
            raise ConfigError(
                f"job {numbers} of this {self.kind} is still in the queue; wait for it, or `scancel {numbers}`"
            )
        file = self._write(jobs)
        submitted = [submit(file)]
        logger.info(f"{file}: submitted as job {submitted[0]}; the same command shows the table later")
        if (arguments := then()) is not None:
            after = folder / f"{self.kind}-next.sbatch"
            write_text(after, next_script(arguments, self.sbatch_options, submitted[0], jobs[0].log.parent.resolve()))
            submitted.append(submit(after))
            logger.info(f"{after}: submitted as job {submitted[1]}, which then submits what needs the results")
        write_text(folder / ID_FILE, " ".join(submitted) + "\n")
        return None

    def _write(self, jobs: Sequence[Job]) -> Path:
        folder = jobs[0].folder
        for job in jobs:
            job.write()
            job.log.parent.mkdir(parents=True, exist_ok=True)
            job.log.touch()  # it was tried, even if Slurm never comes to run it
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
        if name in ("array", "output", "chdir", "dependency"):
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
    lines = [*_head(asked), "case $SLURM_ARRAY_TASK_ID in"]
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
        "",
    ]
    return "\n".join(lines)


def next_script(arguments: Sequence[str], options: dict[str, str], after: str, logs: Path) -> str:
    """The text of the job that runs the command again when the array job `after` has ended, however it has.

    It asks for what the array job asks for (partition, account, ...), but for no GPU, and is not run twice.
    """
    asked = {name: value for name, value in options.items() if name not in DEFAULTS and "gpu" not in name}
    asked |= {
        "job-name": f"{options['job-name']}-next",
        "ntasks": "1",
        "dependency": f"afterany:{after}",
        "output": f"{logs}/%j-next.log",
    }
    command = shlex.join((sys.executable, *PROGRAM, *arguments))
    return "\n".join([*_head(asked), f"cd {shlex.quote(str(Path.cwd()))}", command, ""])


def _head(options: dict[str, str]) -> list[str]:
    asked = [f"#SBATCH --{name}={value}" if value else f"#SBATCH --{name}" for name, value in options.items()]
    return ["#!/bin/bash", *asked, ""]


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
    return done.stdout.strip().partition(";")[0]


def queued_jobs(folder: Path) -> list[str]:
    """The numbers of the jobs that were submitted last, if one of them waits or runs."""
    file = folder / ID_FILE
    if not file.is_file():
        return []
    jobs = file.read_text(encoding="utf-8").split()
    try:
        done = subprocess.run(["squeue", "--noheader", "--job", ",".join(jobs)], capture_output=True, text=True)
    except FileNotFoundError:
        return []
    return jobs if done.returncode == 0 and done.stdout.strip() else []
