"""`ebft study run`: everything that a study file asks for, with a launcher; run again, it does what is left.

A live table shows what happens, and the manifest, `study.json` in the study's folder, says what has: code version,
data, commands, machine, seconds and FLOPs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ebft.errors import ConfigError
from ebft.runtime.files import json_ready, locked, read_json, write_json, write_text
from ebft.studies import code_version, jobs
from ebft.studies.launchers import Launcher
from ebft.studies.live_table import LiveTable
from ebft.studies.metric_facts import facts
from ebft.studies.run_reader import read_entries
from ebft.studies.study_file import Study
from ebft.studies.study_jobs import Evaluation, StudyPlan, TrainingRun, validated

logger = logging.getLogger(__name__)
MANIFEST, STUDY_FILE, LOCK_FILE = "study.json", "study.yaml", "study.lock"
NEXT_STAGE = "--next-stage"  # the option of a command that a chain of jobs runs
_TABLE_EVERY = 2.0  # seconds

AnyJob = TrainingRun | Evaluation


class StudyRunner:
    def __init__(self, study: Study, command: Sequence[str]) -> None:
        self.study, self.command = study, list(command)
        self.failed: set[str] = set()
        self.plan = StudyPlan(study, self.failed)

    def run(self, launcher: Launcher, next_stage: bool = False) -> list[jobs.Job] | None:
        """Returns the jobs that failed; None if they run later.

        next_stage: do only what was not tried before, as the chain of jobs on a cluster does: it must come to an end.
        """
        with locked(self.study.folder / LOCK_FILE):
            self._claim()
            if next_stage:
                self._give_up_what_was_tried()
            return self._run(launcher)

    def _run(self, launcher: Launcher) -> list[jobs.Job] | None:
        done = sum(self.plan.is_finished(job) for job in self.plan.jobs)
        logger.info(f"jobs: {len(self.plan.jobs) + self.plan.unknown}, {done} of them finished")
        if not self._ready([]):
            return []
        table = LiveTable(lambda: self.table(self.running), _TABLE_EVERY)
        self.running: Sequence[jobs.Job] = ()
        self.write_manifest()
        try:
            failed = launcher.launch(self._ready, lambda running: self._progress(running, table), self._then)
        finally:
            table.close()
            self.plan = StudyPlan(self.study, self.failed)
            self.write_manifest()
        return failed

    def _claim(self) -> None:
        folder = self.study.folder
        ours = any((folder / name).exists() for name in (MANIFEST, STUDY_FILE))
        if not ours and any(file.name != LOCK_FILE for file in folder.iterdir()):
            raise ConfigError(f"output_dir={folder} is not empty and holds no study; choose another folder")
        write_text(folder / STUDY_FILE, self.study.text)

    def _ready(self, failed: Sequence[jobs.Job]) -> list[AnyJob]:
        self.failed |= {job.name for job in failed}
        self.plan = StudyPlan(self.study, self.failed)
        self.write_manifest()
        return [job for job in self.plan.ready() if job.name not in self.failed]

    def _give_up_what_was_tried(self) -> None:
        """A candidate that is given up may make runs known that were tried as well."""
        while (
            tried := {j.name for j in self.plan.jobs if j.log.exists() and not self.plan.is_finished(j)} - self.failed
        ):
            self.failed |= tried
            self.plan = StudyPlan(self.study, self.failed)

    def _then(self) -> list[str] | None:
        """The arguments of the command that does what waits for jobs that are ready now; None if nothing does."""
        ready = {job.name for job in self.plan.ready()}
        waiting = any(not self.plan.is_finished(job) and job.name not in ready for job in self.plan.jobs)
        if not waiting and not self.plan.unknown:
            return None
        return [word for word in self.command[1:] if word != NEXT_STAGE] + [NEXT_STAGE]

    def _progress(self, running: Sequence[jobs.Job], table: LiveTable) -> None:
        self.running = running
        table.show()

    def table(self, running: Sequence[jobs.Job] = ()) -> list[tuple[str, ...]]:
        """A line for each job: its state, what validation says after training, and what it took."""
        names = {job.name for job in running}
        rows: list[tuple[str, ...]] = [("job", "state", "step", "validation", "seconds")]
        for job in self.plan.jobs:
            state = "running" if job.name in names else self.state(job)
            rows.append((job.name, state, *(_numbers(job) if isinstance(job, TrainingRun) else ("", "", ""))))
        if self.plan.unknown:
            rows.append((f"{self.plan.unknown} more", "wait for a search", "", "", ""))
        return rows

    def write_manifest(self) -> None:
        file = self.study.folder / MANIFEST
        before = read_json(file) or {}
        write_json(
            file,
            json_ready(
                {
                    "study": self.study.name,
                    "command": self.command,
                    "started": before.get("started", time.strftime("%Y-%m-%dT%H:%M:%S%z")),
                    "code": code_version.describe(),
                    "machine": before.get("machine") or _machine(),
                    "paper": self.study.paper,
                    "rows": self._rows(),
                    "jobs": {job.name: self._manifest_of(job) for job in self.plan.jobs},
                }
            ),
        )

    def state(self, job: AnyJob) -> str:
        if self.plan.is_finished(job):
            return "finished"
        if (error := jobs.last_error(job.log)) is not None:
            return f"failed: {error}"
        return "stopped" if job.log.exists() and job.log.stat().st_size else "waiting"

    def _manifest_of(self, job: AnyJob) -> dict[str, Any]:
        found: dict[str, Any] = {"command": jobs.command_line(job), "state": self.state(job), "log": str(job.log)}
        if isinstance(job, Evaluation):
            return found | {"results": str(job.output)}
        spent = job.results().get("spent") or {}
        data = read_json(job.run / "data.json")
        return found | {"run": str(job.run), "seed": job.seed, "data": data, "spent": spent}

    def _rows(self) -> list[dict[str, Any]]:
        """What the report shows side by side. Places are given from the study's folder, which may be moved."""
        tests = {evaluation.model_name: evaluation for evaluation in self.plan.evaluations}
        rows: list[dict[str, Any]] = []
        for name in self.plan.base_models() if self.study.evaluation else ():
            title = name.replace(",model=", " ")
            model = {"seed": None, "run": None, "log": None, **self._test(tests.get(name))}
            rows.append(
                {
                    "name": name,
                    "title": title,
                    "kind": "base",
                    "method": "base",
                    "values": {},
                    "chosen": {},
                    "searched": [],
                    "models": [model],
                }
            )
        for row in self.study.rows:
            final = self.plan.final.get(row.name, [])
            rows.append(
                {
                    "name": row.name,
                    "title": row.title,
                    "kind": row.method.kind,
                    "method": row.method.name,
                    "after": row.method.after,
                    "values": row.values,
                    "chosen": dict(final[0].chosen) if final else {},
                    "choose_by": row.method.choose_by,
                    "searched": [
                        {"run": self._here(run.run), "log": self._here(run.log), "values": dict(run.chosen)}
                        for run in self.plan.searches.get(row.name, [])
                    ],
                    "models": [
                        {
                            "seed": run.seed,
                            "run": self._here(run.run),
                            "log": self._here(run.log),
                            **self._test(tests.get(run.name)),
                        }
                        for run in final
                    ],
                }
            )
        return rows

    def _test(self, evaluation: Evaluation | None) -> dict[str, Any]:
        if evaluation is None:
            return {"evaluation": None, "evaluation_log": None}
        return {"evaluation": self._here(evaluation.output), "evaluation_log": self._here(evaluation.log)}

    def _here(self, place: Path) -> str:
        return str(place.relative_to(self.study.folder))


def _numbers(run: TrainingRun) -> tuple[str, str, str]:
    entries = read_entries(run.run / "metrics.jsonl")
    step = str(entries[-1]["step"]) if entries else ""
    metric = run.row.method.choose_by
    value = validated(run, metric)
    seconds = next((e["spent/seconds"] for e in reversed(entries) if e.get("spent/seconds") is not None), None)
    shown = "" if value is None else f"{facts(metric).title} {value:.4f}"
    return step, shown, "" if seconds is None else f"{seconds:,.0f}"


def _machine() -> dict[str, str]:
    from ebft.runtime.machine import describe

    return describe()
