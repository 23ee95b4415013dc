"""The jobs of a study, and which of them can run now: a function of what is on the disk.

Runs come before what starts from them, a search before the other seeds of what it chose, and a model before its
evaluation. A search runs every candidate with one seed; the best on validation is trained with the others too.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Container, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import yaml

from ebft.config.evaluation import EvalOptions
from ebft.runtime.files import json_ready, read_json, sha256_of, write_text
from ebft.studies.metric_facts import better
from ebft.studies.points import has_run, load_for_elsewhere, name_of
from ebft.studies.study_file import Row, Study

RUNS, RECIPES, LOGS, EVALUATIONS = "runs", "recipes", "logs", "evaluations"
_MODEL_MARK = "of-model.sha256"  # what training the evaluated model ended with
BASE = "base"  # the name of the model that everything starts from


@dataclass(frozen=True)
class TrainingRun:
    """One run of a row: a candidate of its search, with a seed."""

    study: Study
    row: Row
    chosen: tuple[tuple[str, Any], ...]  # values of what is searched
    seed: int
    model: str | None  # the run that it starts from; None: the model of its settings
    feature_model: str | None  # the run whose final model gives the features; None: as its settings say

    @property
    def name(self) -> str:
        return ",".join(part for part in (self.row.name, name_of({**dict(self.chosen), "seed": self.seed})) if part)

    @property
    def folder(self) -> Path:
        return self.study.folder

    @property
    def run(self) -> Path:
        return self.folder / RUNS / self.name

    @property
    def recipe(self) -> Path:
        return self.folder / RECIPES / f"{self.name}.yaml"

    @property
    def log(self) -> Path:
        return self.folder / LOGS / f"{self.name}.log"

    @property
    def arguments(self) -> list[str]:
        # --resume starts from the beginning where there is no checkpoint.
        return [self.row.method.command, "--config", str(self.recipe.resolve()), "--resume"]

    @cached_property
    def given(self) -> dict[str, Any]:
        values = {**self.row.method.settings, **self.row.values, **dict(self.chosen)}
        if self.model is not None:
            # The features stay those of the model that everything starts from, so that the curves compare.
            values = {"feature_model": values["model"], **values, "model": self.model}
        if values.get("feature_model") in self.study.methods:
            values.pop("feature_model")  # of a method that comes later, or is this one
        if self.feature_model is not None:
            values["feature_model"] = self.feature_model
        values |= {"seed": self.seed, "output_dir": str(self.run.resolve())}
        return load_for_elsewhere(values, self.row.method.command).given

    @property
    def on_cpu(self) -> bool:
        return bool(self.given.get("use_cpu"))

    @property
    def finished(self) -> bool:
        return has_run(self.run, self.given)

    def write(self) -> None:
        self.recipe.parent.mkdir(parents=True, exist_ok=True)
        text = yaml.safe_dump(self.given, sort_keys=False)
        write_text(self.recipe, f"# {self.name} of the study {self.study.name}.\n{text}")

    def results(self) -> dict[str, Any]:
        found = read_json(self.run / "results.json")
        return found if isinstance(found, dict) else {}


@dataclass(frozen=True)
class Evaluation:
    """`ebft eval` of a final model, or of the model that everything starts from."""

    study: Study
    model_name: str  # of the run, or `base`
    model: str
    run: TrainingRun | None
    feature_model: str | None  # the run whose final model gives the features; None: as the options say

    @property
    def name(self) -> str:
        return f"evaluate {self.model_name}"

    @property
    def folder(self) -> Path:
        return self.study.folder

    @property
    def output(self) -> Path:
        return self.folder / EVALUATIONS / self.model_name

    @property
    def log(self) -> Path:
        return self.folder / LOGS / f"evaluate-{self.model_name}.log"

    @property
    def on_cpu(self) -> bool:
        return self.study.evaluation.get("device") == "cpu"

    @property
    def arguments(self) -> list[str]:
        if self._found == "unscored":  # no model is needed, and a copy of a study may have none
            return ["score", str(self.output.resolve())]
        where = {"model": [self.model], "output": str(self.output.resolve())}
        return ["eval", *as_flags({**where, **self.options, "replace_changed": True})]

    @property
    def options(self) -> dict[str, Any]:
        given = dict(self.study.evaluation)
        return given if self.feature_model is None else {**given, "feature_model": self.feature_model}

    @property
    def finished(self) -> bool:
        """Whether every task has results with these settings, of the model as it is now."""
        return self._found == "all"

    @property
    def _found(self) -> Literal["all", "unscored", "none"]:
        from ebft.evaluate.eval_command import task_settings
        from ebft.evaluate.tables import is_scored

        results = read_json(self.output / "results.json") or {}
        options = EvalOptions.from_values(self.options)
        tasks = results.get("tasks", {})
        asked = {task: json_ready(task_settings(task, options)) for task in options.tasks}
        if self._is_older or not all(_has(tasks.get(task, {}).get("settings"), asked[task]) for task in asked):
            return "none"
        return "unscored" if options.score and not all(is_scored(tasks[task]) for task in asked) else "all"

    @property
    def _is_older(self) -> bool:
        """Whether the model was trained further since. Times of files would not tell: copies of a study have others."""
        mark = self.output / _MODEL_MARK
        return mark.exists() and mark.read_text(encoding="utf-8") != self._model_mark

    @property
    def _model_mark(self) -> str:
        results = None if self.run is None else self.run.run / "results.json"
        return sha256_of(results) if results is not None and results.exists() else ""

    def write(self) -> None:
        if self._is_older:  # of a model that is no more
            shutil.rmtree(self.output)
        self.output.mkdir(parents=True, exist_ok=True)
        write_text(self.output / _MODEL_MARK, self._model_mark)


def _has(settings: dict[str, Any] | None, asked: dict[str, Any]) -> bool:
    """Results of older versions also hold settings of other tasks."""
    return settings is not None and {name: settings.get(name) for name in asked} == asked


def as_flags(given: dict[str, Any]) -> list[str]:
    """Options of a command from their values."""
    found = []
    for name, value in given.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            found.append(flag if value else f"--no-{flag[2:]}")
        elif isinstance(value, list):
            found += [f"{flag}={item}" for item in value] or [f"{flag}=none"]
        elif value is not None:
            found.append(f"{flag}={value}")
    return found


class StudyPlan:
    """All jobs of a study that are known by now.

    given_up: names of jobs that have failed and are not tried again.
    """

    def __init__(self, study: Study, given_up: Container[str] = ()) -> None:
        self.study, self.given_up = study, given_up
        self.searches: dict[str, list[TrainingRun]] = {}  # by row, all candidates
        self.final: dict[str, list[TrainingRun]] = {}  # by row, the runs to report
        self.unknown = 0  # runs and evaluations that depend on a search
        self.runs: list[TrainingRun] = []
        self._finished: dict[str, bool] = {}
        for row in study.rows:
            self._add_row(row)
        self.evaluations = self._evaluations()

    @property
    def jobs(self) -> list[TrainingRun | Evaluation]:
        return [*self.runs, *self.evaluations]

    def ready(self) -> list[TrainingRun | Evaluation]:
        """What could run now and has not: evaluations first, so that a study that is stopped has some whole results."""
        jobs: list[TrainingRun | Evaluation] = [*self.evaluations, *self.runs]
        return [job for job in jobs if not self.is_finished(job) and self._can_start(job)]

    def is_finished(self, job: TrainingRun | Evaluation) -> bool:
        """As it was when this plan was made: the disk is asked once."""
        if job.name not in self._finished:
            self._finished[job.name] = job.finished
        return self._finished[job.name]

    def _can_start(self, job: TrainingRun | Evaluation) -> bool:
        needed = (job.model, job.feature_model)
        return all(self.is_finished(run) for run in self.runs if str(run.run.resolve()) in needed)

    def _features_of(self, name: Any, seed: int | None = None) -> str | None:
        """`feature_model` may be the name of a method above: its final model of this seed is meant, or its first."""
        runs = [run for row in self.final for run in self.final[row] if run.row.method.name == name]
        runs = [run for run in runs if run.seed == seed] or runs
        return str(runs[0].run.resolve()) if runs else None

    def _knows_features(self, name: Any, before: str | None = None) -> bool:
        """Whether nothing more has to be chosen before it is known which network gives the features."""
        above = list(self.study.methods)[: None if before is None else list(self.study.methods).index(before)]
        return name not in above or self._features_of(name) is not None

    def _add_row(self, row: Row) -> None:
        method = row.method
        features = {**method.settings, **row.values}.get("feature_model")
        before = self._starts(row) if method.after is not None else None
        # What it starts from is not chosen yet.
        if (method.after is not None and before is None) or not self._knows_features(features, method.name):
            self._leave_open(row, len(method.candidates) - 1 + len(method.seeds))
            return

        def run_of(values: dict[str, Any], seed: int) -> TrainingRun:
            start = None if before is None else before.get(seed, next(iter(before.values())))
            return TrainingRun(self.study, row, tuple(values.items()), seed, start, self._features_of(features, seed))

        values: dict[str, Any] = {}
        if method.search:
            seed = self.study.seed_of_search(method)
            self.searches[row.name] = candidates = [run_of(values, seed) for values in method.candidates]
            self.runs += candidates
            best = self.choose(candidates, method.choose_by)
            if best is None:
                self._leave_open(row, len(method.seeds) - (seed in method.seeds))
                return
            values = dict(best.chosen)
        self.final[row.name] = [run_of(values, seed) for seed in method.seeds]
        self.runs += [run for run in self.final[row.name] if run not in self.runs]

    def _leave_open(self, row: Row, runs: int) -> None:
        self.final[row.name] = []
        self.unknown += runs + (len(row.method.seeds) if self.study.evaluation else 0)

    def _starts(self, row: Row) -> dict[int, str] | None:
        """The runs that a row starts from, by seed; None if they are not known yet."""
        parent = self.study.methods[row.method.after or ""]
        same = {name: row.values[name] for name in parent.grid}
        runs = self.final.get(Row(parent, same).name) or []
        return {run.seed: str(run.run.resolve()) for run in runs} or None

    def choose(self, candidates: Sequence[TrainingRun], metric: str) -> TrainingRun | None:
        """The best on validation; None as long as one of them may still come to its end."""
        if not all(self.is_finished(run) or run.name in self.given_up for run in candidates):
            return None
        found = [(run, validated(run, metric)) for run in candidates if self.is_finished(run)]
        known = [(run, value) for run, value in found if value is not None and math.isfinite(value)]
        return better(metric)(known, key=lambda pair: pair[1])[0] if known else None

    def _evaluations(self) -> list[Evaluation]:
        if not self.study.evaluation:
            return []
        features = self.study.evaluation.get("feature_model")
        if not self._knows_features(features):
            self.unknown += len(self.base_models())
            return []
        network = self._features_of(features)
        found = [Evaluation(self.study, name, model, None, network) for name, model in self.base_models().items()]
        return found + [
            Evaluation(self.study, run.name, str(run.run.resolve()), run, network)
            for runs in self.final.values()
            for run in runs
        ]

    def base_models(self) -> dict[str, str]:
        """The models that runs start from, by name: `base`, or several if the study is about models."""
        models = {
            str({**row.method.settings, **row.values}["model"]): None
            for row in self.study.rows
            if row.method.after is None
        }
        if len(models) == 1:
            return {BASE: next(iter(models))}
        return {f"{BASE},{name_of({'model': model})}": model for model in models}


def validated(run: TrainingRun, metric: str) -> float | None:
    """A metric of validation after training."""
    value = (run.results().get("after") or {}).get(f"eval_{metric}")
    return float(value) if isinstance(value, int | float) else None
