"""Where the jobs of sweeps and studies run. One scheduler for both: the options, and the choice of a launcher.

A new launcher is a class like `LocalLauncher` in a file of its own, and a line in `LAUNCHERS`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Protocol

from ebft.errors import ConfigError, nearest
from ebft.studies.jobs import Job
from ebft.studies.local_launcher import LocalLauncher
from ebft.studies.slurm_launcher import SlurmLauncher

Ready = Callable[[Sequence[Job]], Sequence[Job]]


class Launcher(Protocol):
    def __init__(self, options: argparse.Namespace, kind: str) -> None:
        """From the options of the command; raises ConfigError if one is wrong. Nothing is started yet.

        kind: `sweep` or `study`, for messages and names of files.
        """

    def preview(self, jobs: Sequence[Job]) -> list[str]:
        """What `--dry-run` does: start nothing; returns lines to print."""

    def launch(
        self,
        ready: Ready,
        progress: Callable[[Sequence[Job]], None] | None = None,
        then: Callable[[], list[str] | None] = lambda: None,
    ) -> list[Job] | None:
        """Run jobs until `ready` has no more.

        Args:
            ready: from the jobs that have failed so far to all that could run now; what has run is not run again.
            progress: called now and then with the jobs that are running.
            then: for a launcher that asks `ready` only once: after that, the arguments of the command `ebft` that does
                what waits for the results of these jobs; None if nothing does.

        Returns the jobs that failed; None if they run later.
        """


LAUNCHERS: dict[str, type[Launcher]] = {"local": LocalLauncher, "slurm": SlurmLauncher}


def add_arguments(parser: argparse.ArgumentParser, what: str) -> None:
    """`what`: the word for jobs, such as `points`."""
    add = parser.add_argument
    add("--launcher", default="local", help=f"{', '.join(LAUNCHERS)}: on this machine, or as one array job [local]")
    add("--jobs", type=int, default=None, help=f"{what} at once [local: one for each GPU, one on a CPU; slurm: all]")
    add("--per-gpu", type=int, default=1, help=f"{what} at once on each GPU, with the local launcher [1]")
    add(
        "--reuse-processes",
        action="store_true",
        help=f"{what} after one another in the same process, with the local launcher: what was imported and compiled "
        "stays for the next",
    )
    add("--slurm", action="append", default=[], metavar="NAME=VALUE", help="an option of sbatch, such as time=08:00:00")


def make_launcher(options: argparse.Namespace, kind: str) -> Launcher:
    if options.launcher not in LAUNCHERS:
        raise ConfigError(
            f"--launcher {options.launcher} is not one of {', '.join(LAUNCHERS)}{nearest(options.launcher, LAUNCHERS)}"
        )
    for name in ("jobs", "per_gpu"):
        number = getattr(options, name)
        if number is not None and number < 1:
            raise ConfigError(f"--{name.replace('_', '-')} {number} must be at least 1")
    if options.slurm and options.launcher != "slurm":
        raise ConfigError("--slurm is for --launcher slurm; leave it out")
    if options.launcher != "local" and (options.per_gpu > 1 or options.reuse_processes):
        given = "--reuse-processes" if options.reuse_processes else "--per-gpu"
        raise ConfigError(
            f"{given} is for --launcher local; leave it out with {options.launcher}: a task is one process"
        )
    return LAUNCHERS[options.launcher](options, kind)
