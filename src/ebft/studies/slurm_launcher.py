"""`--launcher slurm`: the points as one array job, in a file that can be read, changed and submitted by hand."""

from __future__ import annotations

import argparse
import logging
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ebft.errors import ConfigError
from ebft.runtime.files import write_text
from ebft.runtime.launch import ENTRY, PREEMPTED
from ebft.studies.points import LOGS, Point

logger = logging.getLogger(__name__)
JOB_FILE, ID_FILE = "sweep.sbatch", "slurm-job"
# What a job asks for unless `--slurm name=value` says otherwise.
DEFAULTS = {"job-name": "ebft-sweep", "ntasks": "1", "gpus-per-task": "1", "requeue": "", "signal": "B:USR1@120"}


class SlurmLauncher:
    def __init__(self, options: argparse.Namespace) -> None:
        self.command, self.jobs = options.command, options.jobs
        self.sbatch_options = parse_options(options.slurm)

    def preview(self, points: Sequence[Point]) -> list[str]:
        unfinished = [point for point in points if not point.finished]
        if unfinished:
            file = self._write(unfinished)
            logger.info(f"{file}: written and not submitted; `sbatch {file}` does")
        return []

    def launch(self, unfinished: Sequence[Point]) -> None:
        """Submit them as one job and return at once."""
        if job := queued_job(unfinished[0].folder):
            raise ConfigError(f"job {job} of this sweep is still in the queue; wait for it, or `scancel {job}`")
        file = self._write(unfinished)
        logger.info(f"{file}: submitted as job {submit(file)}; the same command shows the table later")

    def _write(self, points: Sequence[Point]) -> Path:
        folder = points[0].folder
        for point in points:
            point.write()
        (folder / LOGS).mkdir(parents=True, exist_ok=True)
        write_text(folder / JOB_FILE, job_script(points, self.command, self.sbatch_options, self.jobs))
        return folder / JOB_FILE


def parse_options(given: Sequence[str]) -> dict[str, str]:
    """`partition=gpu`, `requeue`: options of sbatch without their dashes; `no-requeue` takes the default away."""
    options = dict(DEFAULTS)
    for text in given:
        name, _, value = text.lstrip("-").partition("=")
        if not re.fullmatch(r"[a-z][a-z-]*", name):
            raise ConfigError(
                f"--slurm {text}: write --slurm name=value with an option of sbatch, such as time=08:00:00"
            )
        if name in ("array", "output", "chdir"):
            raise ConfigError(f"--slurm {text}: {name} is decided by ebft sweep; leave it out")
        if name == "no-requeue":
            options.pop("requeue", None)
        options[name] = value
    return options


def job_script(points: Sequence[Point], command: str, options: dict[str, str], jobs: int | None) -> str:
    """The text of the array job. A task that is started again resumes from its last checkpoint."""
    folder = points[0].folder.resolve()
    at_once = f"%{jobs}" if jobs else ""
    asked = {**options, "array": f"0-{len(points) - 1}{at_once}", "output": f"{folder / LOGS}/%A_%a.log"}
    lines = ["#!/bin/bash"]
    lines += [f"#SBATCH --{name}={value}" if value else f"#SBATCH --{name}" for name, value in asked.items()]
    lines += ["", "points=("]
    lines += [f"  {shlex.quote(str(point.recipe.resolve()))}" for point in points]
    python = " ".join(shlex.quote(part) for part in (sys.executable, *ENTRY))
    lines += [
        ")",
        f"cd {shlex.quote(str(Path.cwd()))}",
        f'{python} {command} --config "${{points[$SLURM_ARRAY_TASK_ID]}}" --resume &',
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
    """The number of this sweep's array job, if it waits or runs."""
    file = folder / ID_FILE
    if not file.is_file():
        return None
    job = file.read_text(encoding="utf-8").strip()
    try:
        done = subprocess.run(["squeue", "--noheader", "--job", job], capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return job if done.returncode == 0 and done.stdout.strip() else None
