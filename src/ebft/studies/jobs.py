"""The jobs of a study or a sweep, each one `ebft` command with a log, and which of them can run now: a function of what
is on the disk.

Runs come before what starts from them, a search before the other seeds of what it chose, and a model before its
evaluation. A search runs every candidate with one seed; the best on validation is trained with the others too.
"""

from __future__ import annotations

import shlex
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

import yaml

from ebft.config.evaluation import EvalOptions
from ebft.runtime.files import json_ready, read_json, sha256_of, write_text
from ebft.studies.runs import better
from ebft.studies.study_file import Row, Settings, Study, load, named

PROMPT = "$ "  # begins the line of a command in a log
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # recipes are read often


@dataclass(frozen=True)
class Job:
    """An `ebft` command with a log, and whether the disk has its results."""

    name: str
    study: Path  # its folder
    output: Path
    arguments: list[str]
    needed: dict[Path, str]  # small files that are written before it starts
    models: tuple[str | None, ...]  # those that it loads: the final ones of other runs, perhaps
    on_cpu: bool
    finished: bool

    @property
    def log(self) -> Path:
        return self.study / "logs" / f"{self.name}.log"

    @property
    def command(self) -> str:
        return shlex.join(["ebft", *self.arguments])

    @property
    def state(self) -> str:
        """For people."""
        if self.finished:
            return "finished"
        if (error := last_error(self.log)) is not None:
            return f"failed: {error}"
        return "stopped" if self.log.exists() and self.log.stat().st_size else "to do"

    def prepare(self) -> None:
        for file in (self.log, *self.needed):
            file.parent.mkdir(parents=True, exist_ok=True)
        for file, text in self.needed.items():
            write_text(file, text)
        self.log.touch()  # it was tried, even if Slurm never comes to run it


@dataclass(frozen=True)
class Run(Job):
    """A training run: a candidate of a row's search, with a seed."""

    row: Row
    chosen: Settings  # of what is searched
    seed: int | None
    given: Settings  # all settings of its recipe
    validated: float | None  # what the search chooses by, after training; None: it is no number


def last_error(log: Path) -> str | None:
    """Why the last attempt failed: its first error message is the cause. None if it did not, was stopped, or is still
    running. Each attempt begins with its command, whoever starts it."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    lines = f"\n{text}".rpartition(f"\n{PROMPT}")[2].splitlines()
    found = next((line.removeprefix("ebft: ") for line in lines if line.startswith("ebft: ")), None)
    return None if found and found.startswith("stopped") else found


class Plan:
    """All jobs of a study or a sweep that are known by now.

    failed: names of jobs that are not tried again. once: nor is what was ever tried; then nothing is running.
    """

    def __init__(self, study: Study, failed: Container[str] = (), once: bool = False) -> None:
        self.study, self.failed, self.once = study, failed, once
        self.searches: dict[str, list[Run]] = {}  # by row, all candidates
        self.final: dict[str, list[Run]] = {}  # by row, the runs to report; none as long as a search decides
        self.unknown = 0  # runs and evaluations that depend on a search
        self._runs: dict[str, Run] = {}
        self._folder = study.folder.resolve()
        for row in study.rows:
            self.final[row.name] = self._add(row)
        # The models that runs start from: `base`, or several if the study is about models.
        models = list(dict.fromkeys(str(row.settings["model"]) for row in study.rows if row.after is None))
        values = [{"model": model} for model in models]
        self.bases = [Row("base", "base", each if len(models) > 1 else {}, each) for each in values]
        self.evaluations = self._evaluations() if study.evaluation else []
        self.runs = list(self._runs.values())
        self.jobs: list[Job] = [*self.runs, *self.evaluations]
        self.unfinished = [job for job in self.jobs if not job.finished]

    def given_up(self, job: Job) -> bool:
        return job.name in self.failed or (self.once and job.log.exists())

    def ready(self) -> list[Job]:
        """What could run now and has not: evaluations first, so that a study that is stopped has some whole results."""
        first = sorted(self.unfinished, key=lambda job: isinstance(job, Run))
        missing = {str(run.output) for run in self.runs if not run.finished}
        return [job for job in first if not missing & {*job.models}]

    def _add(self, row: Row) -> list[Run]:
        """Its runs as far as they are known; returns those to report."""
        tests, chosen = len(row.seeds) if self.study.evaluation else 0, row.candidates[0]
        if not all(self.final[name] for name in (row.after, row.features) if name is not None):
            self.unknown += len(row.candidates) - 1 + len(row.seeds) + tests
            return []
        if chosen:
            self.searches[row.name] = found = [self._run(row, values, row.search_seed) for values in row.candidates]
            known = [run for run in found if run.finished and run.validated is not None]
            # No best one as long as another may still come to its end.
            if not known or not all(run.finished or self.given_up(run) for run in found):
                self.unknown += len({*row.seeds} - {row.search_seed}) + tests
                return []
            chosen = better(row.choose_by)(known, key=lambda run: run.validated).chosen
        return [self._run(row, chosen, seed) for seed in row.seeds]

    def _run(self, row: Row, chosen: Settings, seed: int | None) -> Run:
        seeded = chosen if seed is None else {**chosen, "seed": seed}
        name = named(row.name, seeded)
        if name in self._runs:
            return self._runs[name]
        values = {**row.settings, **seeded}
        if row.after is not None:
            # The features stay those of the model that everything starts from, so that the curves compare.
            values = {"feature_model": values["model"], **values, "model": self._final_model(row.after, seed)}
        if row.features is not None:
            values["feature_model"] = self._final_model(row.features, seed)
        places = ("", "points") if self.study.kind == "sweep" else ("runs", "recipes")
        output, recipes = (self._folder / place for place in places)
        given = load({**values, "output_dir": str(output / name)}, row.command).given
        recipe = {recipes / f"{name}.yaml": yaml.safe_dump(given, sort_keys=False)}
        arguments = [row.command, "--config", *map(str, recipe), "--resume"]  # from the beginning without a checkpoint
        results = read_json(output / name / "results.json") or {}
        validated = (results.get("after") or {}).get(f"eval_{row.choose_by}")
        models, on_cpu = (given["model"], given.get("feature_model")), bool(given.get("use_cpu"))
        finished = "steps" in results and _is_of(output / name, given)
        command = (name, self._folder, output / name, arguments, recipe, models, on_cpu, finished)
        self._runs[name] = Run(*command, row, chosen, seed, given, validated)
        return self._runs[name]

    def _final_model(self, row: str, seed: int | None) -> str:
        """Of this seed, or the only one."""
        finals = self.final[row]
        return str(next((run for run in finals if run.seed == seed), finals[0]).output)

    def _evaluations(self) -> list[Job]:
        """Of the final models, and of those that everything starts from."""
        options = dict(self.study.evaluation)
        finals = [run for runs in self.final.values() for run in runs]
        method = options.get("feature_model")
        if any(row.method == method for row in self.study.rows):
            features = next((run for run in finals if run.row.method == method), None)
            if features is None:
                self.unknown += len(self.bases) + len(finals)
                return []
            options["feature_model"] = str(features.output)
        models = {row.name: row.settings["model"] for row in self.bases}
        models |= {run.name: str(run.output) for run in finals}
        return [self._evaluation(name, model, options) for name, model in models.items()]

    def _evaluation(self, of: str, model: str, options: Settings) -> Job:
        output = self._folder / "evaluations" / of
        given = {**options, "model": model, "output": str(output), "replace_changed": True}
        listed = {name: (value or ["none"]) if isinstance(value, list) else [value] for name, value in given.items()}
        flags = [f"--{name.replace('_', '-')}={value}" for name, values in listed.items() for value in values]
        # What the training of the model ended with: times of files would not tell, copies have others.
        trained = Path(model) / "results.json" if of in self._runs else None
        needed = {output / "of-model.sha256": sha256_of(trained) if trained and trained.exists() else ""}
        models, on_cpu = (model, options.get("feature_model")), options.get("device") == "cpu"
        finished, name = _is_evaluated(output, options, needed), f"evaluate-{of}"
        return Job(name, self._folder, output, ["eval", *flags], needed, models, on_cpu, finished)


def _is_of(run: Path, given: Settings) -> bool:
    """Whether a run had this very recipe; after a change, such as more steps, it has to continue. The place of the
    study does not count: a copy of it is as finished as it was."""
    before = yaml.load((run / "recipe.yaml").read_text(encoding="utf-8"), _Loader)
    there, here = (
        repr(sorted(recipe.items())).replace(recipe["output_dir"].removesuffix(run.name), "")
        for recipe in (before, given)
    )
    return there == here


def _is_evaluated(output: Path, given: Settings, of_model: dict[Path, str]) -> bool:
    """Whether every task has results with these settings, of the model as it is now."""
    from ebft.evaluate.commands import task_settings
    from ebft.evaluate.tables import is_scored

    if any(file.exists() and file.read_text(encoding="utf-8") != text for file, text in of_model.items()):
        return False  # it was trained further since
    tasks, options = (read_json(output / "results.json") or {}).get("tasks", {}), EvalOptions.from_values(given)
    return all(
        tasks.get(task, {}).get("settings") == json_ready(task_settings(task, options))
        and (is_scored(tasks[task]) or not options.score)
        for task in options.tasks
    )
