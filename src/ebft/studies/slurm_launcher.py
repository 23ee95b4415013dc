"""`--launcher slurm`: the points as one array job, in a file that can be read, changed and submitted by hand."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ebft.errors import ConfigError
from ebft.runtime.launch import ENTRY
from ebft.studies.points import LOGS, Point

JOB_FILE, ID_FILE = "sweep.sbatch", "slurm-job"
# What a job asks for unless `--slurm name=value` says otherwise.
DEFAULTS = {"job-name": "ebft-sweep", "ntasks": "1", "gpus-per-task": "1", "requeue": "", "signal": "B:USR1@120"}


def options_of(given: Sequence[str]) -> dict[str, str]:
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


def job_file(points: Sequence[Point], command: str, options: dict[str, str], jobs: int | None = None) -> str:
    """The text of the array job. A task that is started again goes on from its last checkpoint."""
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
        "# Slurm gives notice before time is up: back into the queue, to go on from the last checkpoint.",
        """trap 'scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"' USR1""",
        f'{python} {command} --config "${{points[$SLURM_ARRAY_TASK_ID]}}" --resume &',
        "wait $!",
        "",
    ]
    return "\n".join(lines)


def write(points: Sequence[Point], text: str) -> Path:
    file = points[0].folder / JOB_FILE
    (points[0].folder / LOGS).mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


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
    (file.parent / ID_FILE).write_text(job + "\n", encoding="utf-8")
    return job


def still_queued(folder: Path) -> str | None:
    """The number of an array job of this sweep that waits or runs, so that no point is started twice."""
    file = folder / ID_FILE
    if not file.is_file():
        return None
    job = file.read_text(encoding="utf-8").strip()
    try:
        done = subprocess.run(["squeue", "--noheader", "--job", job], capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return job if done.returncode == 0 and done.stdout.strip() else None
