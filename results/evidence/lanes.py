"""Jobs of a list, several at a time on one GPU, each when what it needs is done.

    python results/evidence/phase_b.py select > jobs.txt
    python results/evidence/lanes.py jobs.txt --lanes 3 --seconds 1500 --logs logs

A line is `NAME [after OTHER,...] [~SECONDS]: COMMAND`. A job that is done has a file NAME.done in the folder of logs
and is not run again, one that failed ends what needs it, and none is started that would not end in time.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

LINE = re.compile(r"(?P<name>\S+?)(?: after (?P<after>\S+?))?(?: ~(?P<seconds>\d+))?: (?P<command>.+)")


@dataclass(frozen=True)
class Job:
    name: str
    after: tuple[str, ...]
    seconds: float
    command: str


def jobs_of(text: str) -> list[Job]:
    jobs = []
    for line in text.splitlines():
        if line and not line.startswith("#"):
            found = LINE.fullmatch(line)
            if not found:
                raise SystemExit(f"not a job: {line}")
            after = tuple(found["after"].split(",")) if found["after"] else ()
            jobs.append(Job(found["name"], after, float(found["seconds"] or 0), found["command"]))
    return jobs


def run(jobs: list[Job], lanes: int, seconds: float, logs: Path) -> dict[str, str]:
    """What became of each job: done, failed or not started."""
    logs.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    state = {job.name: "done" if (logs / f"{job.name}.done").exists() else "waiting" for job in jobs}
    running: dict[str, tuple[subprocess.Popen[bytes], float]] = {}
    while True:
        for name, (process, started) in list(running.items()):
            if process.poll() is not None:
                del running[name]
                state[name] = "failed" if process.returncode else "done"
                took = f"{time.monotonic() - started:.0f} s"
                print(f"{time.monotonic() - began:5.0f} s  {name}: {state[name]} after {took}", flush=True)
                if not process.returncode:
                    (logs / f"{name}.done").write_text(took)
        left = seconds - (time.monotonic() - began)
        ready = [
            job
            for job in jobs
            if state[job.name] == "waiting"
            and job.seconds <= left
            and all(state.get(name, "done") == "done" for name in job.after)
        ]
        for job in ready[: max(0, lanes - len(running))]:
            state[job.name] = "running"
            with (logs / f"{job.name}.log").open("wb") as log:
                running[job.name] = (
                    subprocess.Popen(job.command, shell=True, stdout=log, stderr=subprocess.STDOUT),
                    time.monotonic(),
                )
        if not running:
            return {name: "not started" if found == "waiting" else found for name, found in state.items()}
        if left < 0:
            for process, _ in running.values():
                process.kill()
        time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", type=Path)
    parser.add_argument("--lanes", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="when everything ends")
    parser.add_argument("--logs", type=Path, default=Path("logs"))
    args = parser.parse_args()
    for name, found in run(jobs_of(args.jobs.read_text()), args.lanes, args.seconds, args.logs).items():
        if found != "done":
            print(f"{name}: {found}")


if __name__ == "__main__":
    main()
