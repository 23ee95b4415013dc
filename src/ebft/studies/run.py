"""`ebft study run` and `ebft sweep`: every job with a launcher; run again, they do what is left.

The manifest of a study, `study.json` in its folder, says what has happened: code version, data, commands, machine,
seconds and FLOPs.
"""

from __future__ import annotations

import logging
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
from ebft.method.measures import NAMES, with_error
from ebft.runtime.files import json_ready, read_json, write_json, write_text
from ebft.studies import compare
from ebft.studies.compare import Comparison
from ebft.studies.jobs import Evaluation, Job, Plan, Run, command_line, last_error
from ebft.studies.launchers import NEXT_STAGE, LocalLauncher, SlurmLauncher
from ebft.studies.runs import METRICS_FILE, read_entries
from ebft.studies.study_file import Study
from ebft.version import __version__

logger = logging.getLogger(__name__)
_CHECKS = (check_datasets, fetch.check_models)
MANIFEST, STUDY_FILE = "study.json", "study.yaml"


def check_inputs(plan: Plan, elsewhere: bool) -> None:
    """Data, models, problems and a sandbox are there, and no run has begun with other settings: all that is wrong, said
    before the first job starts. elsewhere: jobs run on other machines, which may have what is not here."""
    from ebft.evaluate.tasks import problem_sets
    from ebft.train.run_folder import BATCH, other_setting

    study, checks = plan.study, list[tuple[str, Callable[[], Any]]]()
    for run in (run for run in plan.runs if not plan.is_finished(run)):
        if (why := other_setting(run.output, run.given, run.row.command, BATCH)) is not None:
            raise ConfigError(f"{run.name}: {why}; set it back, choose another output_dir, or delete that folder")
    for row in study.rows:
        if not plan.final[row.name] or not all(map(plan.is_finished, plan.final[row.name])):
            every = [_existing({**row.settings, **values}, study) for values in row.candidates]
            checks += [(row.name, partial(check, settings)) for settings in every for check in _CHECKS]
    if study.evaluation and (plan.unknown or not all(map(plan.is_finished, plan.evaluations))):
        options = EvalOptions.from_values(given := _existing(study.evaluation, study))
        checks.append(("evaluation", partial(fetch.check_models, given)))
        checks += [("evaluation", partial(problem_sets, task, options)) for task in options.tasks]
    wrong: dict[str, str] = {}
    for name, check in checks:
        try:
            check()
        except ValueError as error:
            wrong.setdefault(str(error), name)
    if wrong and not elsewhere:
        raise ConfigError("; ".join(f"{name}: {error}" for error, name in wrong.items()))
    for message, name in wrong.items():
        logger.warning(f"not on this machine: {name}: {message}")


def _existing(settings: dict[str, Any], study: Study) -> dict[str, Any]:
    """Without a feature network that will be there: the final model of a method."""
    return {name: value for name, value in settings.items() if name != "feature_model" or value not in study.methods}


class Runner:
    """command: what runs all this again."""

    def __init__(self, study: Study, command: Sequence[str]) -> None:
        self.study, self.command = study, list(command)
        self.failed: set[str] = set()
        self.plan = Plan(study, self.failed)
        self.lock = study.folder / ("sweep.lock" if study.is_sweep else "study.lock")

    def extent(self) -> str:
        """How many jobs there are, and how many steps: said before anything starts."""
        plan, lengths = self.plan, Counter(run.length for run in self.plan.runs)
        runs = ", ".join(f"{count} of {length}" for length, count in lengths.items())
        tests = f" and {len(plan.evaluations)} evaluations" if plan.evaluations else ""
        more = f"; {plan.unknown} more wait for a search" if plan.unknown else ""
        return f"jobs: {len(plan.runs)} training runs ({runs}){tests}, {self._done()} of them finished{more}"

    def _done(self) -> int:
        return sum(map(self.plan.is_finished, self.plan.jobs))

    def run(self, launcher: LocalLauncher | SlurmLauncher, next_stage: bool = False) -> list[Job] | None:
        """Returns the jobs that failed; None if they run later. To be called with the lock.

        next_stage: do only what was not tried before, as the chain of jobs on a cluster does: it must come to an end.
        """
        folder = self.study.folder
        if not self.study.is_sweep:
            ours = any((folder / name).exists() for name in (MANIFEST, STUDY_FILE))
            if not ours and any(file != self.lock for file in folder.iterdir()):
                raise ConfigError(f"output_dir={folder} is not empty and holds no study; choose another folder")
            write_text(folder / STUDY_FILE, self.study.text)
        while next_stage and (tried := {job.name for job in self._left() if job.log.exists()} - self.failed):
            self.failed |= tried  # a candidate that is given up may make runs known that were tried as well
            self.plan = Plan(self.study, self.failed)
        logger.info(self.extent())
        self.said = self._done()
        try:
            return launcher.launch(self._ready, self._then)
        finally:
            self._update([])

    def _left(self) -> list[Job]:
        return [job for job in self.plan.jobs if not self.plan.is_finished(job)]

    def _update(self, failed: Sequence[Job]) -> None:
        self.failed |= {job.name for job in failed}
        self.plan = Plan(self.study, self.failed)
        if not self.study.is_sweep:
            self.write_manifest()

    def _ready(self, failed: Sequence[Job]) -> list[Job]:
        self._update(failed)
        if (done := self._done()) != self.said:
            logger.info(f"finished: {done} of {len(self.plan.jobs) + self.plan.unknown} jobs")
            self.said = done
        return [job for job in self.plan.ready() if job.name not in self.failed]

    def _then(self) -> list[str] | None:
        """The arguments of the command that does what waits for jobs that are ready now; None if nothing does."""
        if len(self.plan.ready()) == len(self._left()) and not self.plan.unknown:
            return None
        return [word for word in self.command[1:] if word != NEXT_STAGE] + [NEXT_STAGE]

    def table(self) -> list[tuple[str, ...]]:
        """A line for each job: its state, what validation says after training, and what it took."""
        after = {run.name: run.results().get("after") or {} for run in self.plan.runs}
        metrics = [metric for metric in NAMES if any(f"eval_{metric}" in found for found in after.values())]
        rows: list[tuple[str, ...]] = [("job", "state", "step", *(NAMES[metric] for metric in metrics), "seconds")]
        for job in self.plan.jobs:
            found = after.get(job.name, {})
            values = [with_error(found.get(f"eval_{m}"), found.get(f"eval_{m}_se")) for m in metrics]
            entries = read_entries(job.output / METRICS_FILE)
            seconds = next((e["spent/seconds"] for e in reversed(entries) if e.get("spent/seconds") is not None), None)
            step = str(entries[-1]["step"]) if entries else ""
            rows.append((job.name, self.state(job), step, *values, "" if seconds is None else f"{seconds:,.0f}"))
        if self.plan.unknown:
            rows.append((f"{self.plan.unknown} more", "wait for a search", *[""] * (len(metrics) + 2)))
        return rows

    def state(self, job: Job) -> str:
        if self.plan.is_finished(job):
            return "finished"
        if (error := last_error(job.log)) is not None:
            return f"failed: {error}"
        return "stopped" if job.log.exists() and job.log.stat().st_size else "waiting"

    def write_manifest(self) -> None:
        from ebft.runtime.machine import describe

        file = self.study.folder / MANIFEST
        before = read_json(file) or {}
        found = {
            "study": self.study.name,
            "command": self.command,
            "started": before.get("started", time.strftime("%Y-%m-%dT%H:%M:%S%z")),
            "code": _code(),
            "machine": before.get("machine") or describe(),
            "paper": self.study.paper,
            "rows": [*self._base_rows(), *self._rows()],
            "jobs": {job.name: self._manifest_of(job) for job in self.plan.jobs},
        }
        write_json(file, json_ready(found))

    def _manifest_of(self, job: Job) -> dict[str, Any]:
        found: dict[str, Any] = {"command": command_line(job), "state": self.state(job), "log": str(job.log)}
        if isinstance(job, Evaluation):
            return found | {"results": str(job.output)}
        data, spent = read_json(job.output / "data.json"), job.results().get("spent") or {}
        return found | {"run": str(job.output), "seed": job.seed, "data": data, "spent": spent}

    def _base_rows(self) -> list[dict[str, Any]]:
        rest: dict[str, Any] = {"kind": "base", "method": "base", "values": {}, "chosen": {}, "searched": []}
        return [
            {"name": name, "title": name.replace(",model=", " "), **rest, "models": [self._model(name, None)]}
            for name in (self.plan.base_models() if self.study.evaluation else ())
        ]

    def _rows(self) -> list[dict[str, Any]]:
        """What the report shows side by side. Places are given from the study's folder, which may be moved."""
        methods = {row.name: row.method for row in self.study.rows}
        return [
            {
                "name": row.name,
                "title": row.title,
                "kind": row.kind,
                "method": row.method,
                "after": methods.get(row.after or ""),
                "values": row.values,
                "chosen": final[0].chosen if (final := self.plan.final[row.name]) else {},
                "choose_by": row.choose_by,
                "searched": [{**self._places(r), "values": r.chosen} for r in self.plan.searches.get(row.name, [])],
                "models": [self._model(run.name, run) for run in final],
            }
            for row in self.study.rows
        ]

    def _model(self, name: str, run: Run | None) -> dict[str, Any]:
        test = next((evaluation for evaluation in self.plan.evaluations if evaluation.of == name), None)
        trained = {"run": None, "log": None} if run is None else self._places(run)
        places = {} if test is None else {"evaluation": f"evaluations/{name}", "evaluation_log": self._here(test.log)}
        return {"seed": run and run.seed, **trained, "evaluation": None, "evaluation_log": None, **places}

    def _places(self, run: Run) -> dict[str, str]:
        return {"run": self._here(run.output), "log": self._here(run.log)}

    def _here(self, place: Path) -> str:
        return str(place.resolve().relative_to(self.study.folder.resolve()))


def _code() -> dict[str, str]:
    """ebft's version, and the commit where it is a checkout."""
    git, found = ["git", "-C", str(Path(__file__).parent)], {"ebft": __version__}
    try:
        tracked = subprocess.run([*git, "ls-files", "--error-unmatch", Path(__file__).name], capture_output=True)
        describe = ["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        commit = subprocess.run([*git, *describe], capture_output=True)
    except OSError:  # no git here
        return found
    return found if tracked.returncode else {**found, "commit": commit.stdout.decode().strip()}


def compare_points(plan: Plan) -> Comparison | None:
    """`ebft compare` of the points of a sweep that have been evaluated: curves, page and numbers in its folder."""
    measured = [run for run in plan.runs if (run.output / METRICS_FILE).is_file()]
    evaluated = [str(run.output) for run in measured if any(run.results().get(key) for key in ("before", "after"))]
    return compare.compare(evaluated, str(plan.study.folder / compare.FOLDER)) if evaluated else None
