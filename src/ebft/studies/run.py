"""`ebft study run` and `ebft sweep`: every job with a launcher; run again, they do what is left.

The manifest of a study, `study.json` in its folder, says what has happened: code version, data, commands, machine,
seconds and FLOPs.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ebft import fetch
from ebft.config.evaluation import EvalOptions
from ebft.config.recipe import check_datasets
from ebft.errors import ConfigError
from ebft.runtime.files import json_ready, read_json, write_json, write_text
from ebft.studies import launchers
from ebft.studies.jobs import Job, Plan, Run, command_line, state_of
from ebft.studies.runs import Json
from ebft.studies.study_file import Row, Study, name_of
from ebft.version import __version__

logger = logging.getLogger(__name__)


def check_inputs(plan: Plan, elsewhere: bool) -> None:
    """Data, models, problems and a sandbox are there, and no run has begun with other settings: said before the first
    job starts. elsewhere: jobs run on other machines, which may have what is not here."""
    from ebft.evaluate.tasks import problem_sets
    from ebft.train.run_folder import BATCH, other_setting

    for run in plan.runs:
        if not run.finished and (why := other_setting(run.output, run.given, run.row.command, BATCH)) is not None:
            raise ConfigError(f"{run.name}: {why}; set it back, choose another output_dir, or delete that folder")
    checks: list[tuple[str, Callable[[], Any]]] = []
    for row in plan.study.rows:
        if not plan.final[row.name] or not all(run.finished for run in plan.final[row.name]):
            for settings in ({**row.settings, **values} for values in row.candidates):
                checks += [(row.name, partial(check, settings)) for check in (check_datasets, fetch.check_models)]
    if plan.study.evaluation and (plan.unknown or not all(test.finished for test in plan.evaluations)):
        options = EvalOptions.from_values(plan.study.evaluation)
        if options.feature_model not in [row.method for row in plan.study.rows]:  # else it will be there
            checks.append(("evaluation", partial(fetch.check_models, plan.study.evaluation)))
        checks += [("evaluation", partial(problem_sets, task, options)) for task in options.tasks]
    for name, check in checks:
        try:
            check()
        except ValueError as error:
            if not elsewhere:
                raise ConfigError(f"{name}: {error}") from None
            logger.warning(f"not on this machine: {name}: {error}")


class Runner:
    """command: what runs all this again."""

    def __init__(self, study: Study, command: Sequence[str]) -> None:
        self.study, self.command = study, list(command)
        self.failed: set[str] = set()
        self.plan = Plan(study, self.failed)
        self.lock = study.folder / f"{study.kind}.lock"

    def extent(self) -> str:
        """How many jobs there are, and how many steps: said before anything starts."""
        plan, lengths = self.plan, Counter(run.length for run in self.plan.runs)
        runs = ", ".join(f"{count} of {length}" for length, count in lengths.items())
        tests = f" and {len(plan.evaluations)} evaluations" if plan.evaluations else ""
        done = len(plan.jobs) - len(plan.unfinished)
        return f"jobs: {len(plan.runs)} training runs ({runs}){tests}, {done} of them finished"

    def run(self, options: argparse.Namespace) -> list[Job] | None:
        """Returns the jobs that failed; None if they run later. To be called with the lock.

        options: of the launcher. With `next_stage`, do only what was not tried before, as a chain of jobs on a cluster
        does: it must come to an end.
        """
        if not self.study.is_sweep:
            write_text(self.study.folder / "study.yaml", self.study.text)
        while options.next_stage and (tried := {j.name for j in self.plan.unfinished if j.log.exists()} - self.failed):
            self.failed |= tried  # a candidate that is given up may make runs known that were tried as well
            self.plan = Plan(self.study, self.failed)
        logger.info(self.extent())
        try:
            if options.launcher == "local":
                return launchers.run_here(options, self._ready)
            if not (jobs := self._ready([])):
                return []
            waits = self.plan.unknown or len(self.plan.ready()) < len(self.plan.unfinished)
            again = [word for word in self.command[1:] if word != launchers.NEXT_STAGE] + [launchers.NEXT_STAGE]
            launchers.submit(self.study.kind, options, jobs, again if waits else [])
            return None
        finally:
            self._ready([])

    def _ready(self, failed: Sequence[Job]) -> list[Job]:
        self.failed |= {job.name for job in failed}
        self.plan = Plan(self.study, self.failed)
        if not self.study.is_sweep:
            self.write_manifest()
        return [job for job in self.plan.ready() if job.name not in self.failed]

    def states(self) -> list[str]:
        more = [f"{self.plan.unknown} more wait for a search"] if self.plan.unknown else []
        return [f"{job.name}: {state_of(job)}" for job in self.plan.jobs] + more

    # ---- what has happened -----------------------------------------------------------------------------------------

    def write_manifest(self) -> None:
        from ebft.runtime.machine import describe

        file, plan = self.study.folder / "study.json", self.plan
        before = read_json(file) or {}
        base: Json = {"kind": "base", "method": "base", "values": {}, "chosen": {}, "searched": []}
        bases = [
            {"name": name, "title": name.replace(",model=", " "), **base, "models": [self._model(name, None)]}
            for name in (plan.base_models() if self.study.evaluation else ())
        ]
        found = {
            "study": self.study.name,
            "command": self.command,
            "started": before.get("started", time.strftime("%Y-%m-%dT%H:%M:%S%z")),
            "code": _code(),
            "machine": before.get("machine") or describe(),
            "paper": self.study.paper,
            "rows": [*bases, *map(self._row, self.study.rows)],
            "jobs": {job.name: {"state": state_of(job), "command": command_line(job)} for job in plan.jobs},
        }
        write_json(file, json_ready(found))

    def _row(self, row: Row) -> Json:
        """What the report shows side by side."""
        final, candidates = self.plan.final[row.name], self.plan.searches.get(row.name, [])
        shown = name_of(row.values).replace("=", " ").replace(",", ", ")
        return {
            "name": row.name,
            "title": f"{row.method} ({shown})" if shown else row.method,
            "kind": {"train": "ebft"}.get(row.command, row.command),
            "method": row.method,
            "after": next((other.method for other in self.study.rows if other.name == row.after), None),
            "values": row.values,
            "chosen": final[0].chosen if final else {},
            "choose_by": row.choose_by,
            "searched": [{**_places(run), "values": run.chosen} for run in candidates],
            "models": [self._model(run.name, run) for run in final],
        }

    def _model(self, name: str, run: Run | None) -> Json:
        is_tested = any(test.of == name for test in self.plan.evaluations)
        tests = {"evaluation": f"evaluations/{name}", "evaluation_log": f"logs/evaluate-{name}.log"}
        trained = {"run": None, "log": None} if run is None else _places(run)
        return {"seed": run and run.seed, **trained, **(tests if is_tested else dict.fromkeys(tests))}


def _places(run: Run) -> Json:
    """From the study's folder, which may be moved."""
    return {"run": f"runs/{run.name}", "log": f"logs/{run.name}.log"}


def _code() -> dict[str, str]:
    """ebft's version, and the commit where it is a checkout."""
    checkout, found = Path(__file__).parents[3], {"ebft": __version__}
    if not (checkout / ".git").exists() or shutil.which("git") is None:
        return found
    describe = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    return {**found, "commit": subprocess.run(describe, capture_output=True, text=True).stdout.strip()}
