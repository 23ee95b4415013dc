"""`ebft study run` and `ebft sweep`: every job with a launcher; run again, they do what is left.

The manifest of a study, `study.json` in its folder, says what has happened: code version, commands, machine, states.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ebft import fetch
from ebft.config.evaluation import EvalOptions
from ebft.config.recipe import check_datasets
from ebft.errors import ConfigError
from ebft.runtime.files import json_ready, locked, read_json, write_json, write_text
from ebft.runtime.messages import print_error
from ebft.studies import launchers
from ebft.studies.jobs import Job, Plan, Run
from ebft.studies.runs import Json
from ebft.studies.study_file import Study, named

logger = logging.getLogger(__name__)
NEXT_STAGE = "--next-stage"  # the option of the command that a chain of jobs on a cluster runs


def check_inputs(plan: Plan, elsewhere: bool) -> None:
    """Data, models, problems and a sandbox are there, and no run has begun with other settings: said before the first
    job starts. elsewhere: jobs run on other machines, which may have what is not here."""
    from ebft.evaluate.tasks import problem_sets
    from ebft.train.run_folder import BATCH, other_setting

    def check(name: str, function: Callable[..., object], *arguments: object) -> None:
        try:
            function(*arguments)
        except ValueError as error:
            if not elsewhere:
                raise ConfigError(f"{name}: {error}") from None
            logger.warning(f"not on this machine: {name}: {error}")

    for run in plan.runs:
        if not run.finished and (why := other_setting(run.output, run.given, run.row.command, BATCH)) is not None:
            raise ConfigError(f"{run.name}: {why}; set it back, choose another output_dir, or delete that folder")
    if not plan.unknown and not plan.unfinished:
        return
    for row in plan.study.rows:
        for values in row.candidates:
            check(row.name, check_datasets, {**row.settings, **values})
            check(row.name, fetch.check_models, {**row.settings, **values})
    if evaluation := plan.study.evaluation:
        options = EvalOptions.from_values(evaluation)
        if options.feature_model not in [row.method for row in plan.study.rows]:  # else it will be there
            check("evaluation", fetch.check_models, evaluation)
        for task in options.tasks:
            check("evaluation", problem_sets, task, options)


class Runner:
    """A study or a sweep, with the command that does what is left of it."""

    def __init__(self, study: Study, command: Sequence[str], options: argparse.Namespace) -> None:
        self.study, self.command, self.options = study, list(command), options
        self.failed: set[str] = set()  # names of jobs that are not tried again
        self.plan = Plan(study)

    def run(self) -> int:
        """The exit code. With `next_stage` only what was not tried before: a chain of jobs must come to an end."""
        study, options = self.study, self.options
        if not options.next_stage:  # else it was checked when the chain began
            check_inputs(self.plan, elsewhere=options.launcher != "local")
        if options.dry_run:
            print("\n".join([*self.states(), self.extent()]))
            if options.launcher == "slurm" and (left := self.plan.unfinished):
                print(f"written and not submitted: sbatch {launchers.write_array(study, options, left)}")
            return 0
        with locked(study.folder / f"{study.kind}.lock"):
            if study.text:
                write_text(study.folder / "study.yaml", study.text)
            while options.next_stage and (
                tried := {job.name for job in self.plan.unfinished if job.log.exists()} - self.failed
            ):
                self.failed |= tried  # a candidate that is given up may make runs known that were tried as well
                self.plan = Plan(study, self.failed)
            logger.info(self.extent())
            try:
                if options.launcher == "local":
                    launchers.run_here(options, self._ready, self.failed)
                elif jobs := self._ready():
                    waits = self.plan.unknown or len(self.plan.ready()) < len(self.plan.unfinished)
                    again = [word for word in self.command[1:] if word != NEXT_STAGE] + [NEXT_STAGE]
                    launchers.submit(study, options, jobs, again if waits else [])
                    return 0  # they run later
            finally:
                self._ready()
        print("\n".join(self.states()))
        if self.failed:
            print_error(f"{len(self.failed)} job{'s' * (len(self.failed) > 1)} failed; the same command tries again")
        return int(bool(self.failed))

    def _ready(self) -> list[Job]:
        """All jobs that could run now, by what is on the disk; the manifest says how far they are."""
        self.plan = Plan(self.study, self.failed)
        if self.study.kind == "study":
            self.write_manifest()
        return [job for job in self.plan.ready() if job.name not in self.failed]

    def states(self) -> list[str]:
        more = [f"{self.plan.unknown} more wait for a search"] if self.plan.unknown else []
        return [f"{job.name}: {job.state}" for job in self.plan.jobs] + more

    def extent(self) -> str:
        plan = self.plan
        tests = f" and {len(plan.evaluations)} evaluations" if plan.evaluations else ""
        done = len(plan.jobs) - len(plan.unfinished)
        return f"jobs: {len(plan.runs)} training runs{tests}, {done} of them finished"

    def write_manifest(self) -> None:
        """What has happened, and what the report shows side by side."""
        from ebft.runtime.machine import describe

        file, plan, study = self.study.folder / "study.json", self.plan, self.study
        before, tested = read_json(file) or {}, {job.name for job in plan.evaluations}
        methods = {row.name: row.method for row in study.rows}

        def places(run: Run) -> Json:  # from the study's folder, which may be moved
            return {"run": f"runs/{run.name}", "log": f"logs/{run.name}.log"}

        def model(name: str, run: Run | None = None) -> Json:
            tests = {"evaluation": f"evaluations/{name}", "evaluation_log": f"logs/evaluate-{name}.log"}
            trained = {"run": None, "log": None} if run is None else places(run)
            done = tests if f"evaluate-{name}" in tested else dict.fromkeys(tests)
            return {"seed": run and run.seed, **trained, **done}

        rows: list[Json] = []
        for name in plan.base_models() if study.evaluation else ():
            about = {"name": name, "title": name.replace(",model=", " "), "kind": "base", "method": "base"}
            rows.append({**about, "values": {}, "chosen": {}, "searched": [], "models": [model(name)]})
        for row in study.rows:
            final, shown = plan.final[row.name], named("", row.values).replace("=", " ").replace(",", ", ")
            title = f"{row.method} ({shown})" if shown else row.method
            kind = {"train": "ebft"}.get(row.command, row.command)
            named_so: Json = {
                "name": row.name,
                "title": title,
                "kind": kind,
                "method": row.method,
                "values": row.values,
            }
            searched = [{**places(run), "values": run.chosen} for run in plan.searches.get(row.name, [])]
            chosen = {"chosen": final[0].chosen if final else {}, "choose_by": row.choose_by, "searched": searched}
            models = [model(run.name, run) for run in final]
            rows.append({**named_so, "after": methods.get(row.after or ""), **chosen, "models": models})
        found = {
            "study": study.name,
            "command": self.command,
            "started": before.get("started", time.strftime("%Y-%m-%dT%H:%M:%S%z")),
            "code": _code(),
            "machine": before.get("machine") or describe(),
            "paper": study.paper,
            "rows": rows,
            "jobs": {job.name: {"state": job.state, "command": job.command} for job in plan.jobs},
        }
        write_json(file, json_ready(found))


def _code() -> dict[str, str]:
    """The commit, where the code is a checkout."""
    checkout = Path(__file__).parents[3]
    if not (checkout / ".git").exists() or shutil.which("git") is None:
        return {}
    describe = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    return {"commit": subprocess.run(describe, capture_output=True, text=True).stdout.strip()}
