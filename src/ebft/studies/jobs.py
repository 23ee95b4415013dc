"""The jobs of a study or a sweep, each one `ebft` command with a log, and which of them can run now: a function of what
is on the disk.

Runs come before what starts from them, a search before the other seeds of what it chose, and a model before its
evaluation. A search runs every candidate with one seed; the best on validation is trained with the others too.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from ebft.config.evaluation import EvalOptions
from ebft.runtime.files import json_ready, read_json, sha256_of, write_text
from ebft.studies.runs import better
from ebft.studies.study_file import Row, Study, load, name_of

BASE = "base"  # the name of the model that everything starts from
PROMPT = "$ "  # begins the line of a command in a log
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # recipes are read often


@dataclass(frozen=True)
class Run:
    """A training run: a candidate of a row's search, with a seed."""

    name: str
    study: Study
    row: Row
    chosen: dict[str, Any]  # of what is searched
    seed: int | None
    given: dict[str, Any]  # all settings of its recipe
    length: str  # how long it trains, in words

    @property
    def output(self) -> Path:
        return Path(self.given["output_dir"])

    @property
    def recipe(self) -> Path:
        return self.study.folder / ("points" if self.study.is_sweep else "recipes") / f"{self.name}.yaml"

    @property
    def log(self) -> Path:
        return self.study.folder / "logs" / f"{self.name}.log"

    @property
    def arguments(self) -> list[str]:
        """Of the command `ebft`: --resume starts from the beginning where there is no checkpoint."""
        return [self.row.command, "--config", str(self.recipe.resolve()), "--resume"]

    @property
    def on_cpu(self) -> bool:
        return bool(self.given.get("use_cpu"))

    @property
    def finished(self) -> bool:
        """Whether this very recipe has run to its end; after a change, such as more steps, it has to continue."""
        recipe = self.output / "recipe.yaml"
        if "steps" not in self.results() or not recipe.is_file():
            return False
        return self._inside(yaml.load(recipe.read_text(encoding="utf-8"), _Loader)) == self._inside(self.given)

    def _inside(self, given: dict[str, Any]) -> dict[str, Any]:
        """With paths as they are seen from the study's folder: a copy of it is as finished as the study was."""
        depth = len(self.output.relative_to(self.study.folder.resolve()).parts)
        root = f"{Path(*Path(str(given.get('output_dir'))).parts[:-depth])}/"
        return {name: value.removeprefix(root) if isinstance(value, str) else value for name, value in given.items()}

    def write(self) -> None:
        """The recipe, before the run starts."""
        self.recipe.parent.mkdir(parents=True, exist_ok=True)
        text = yaml.safe_dump(self.given, sort_keys=False)
        write_text(self.recipe, f"# {self.name} of the study {self.study.name}.\n{text}")

    def results(self) -> dict[str, Any]:
        found = read_json(self.output / "results.json")
        return found if isinstance(found, dict) else {}


@dataclass(frozen=True)
class Evaluation:
    """`ebft eval` of a final model, or of the model that everything starts from."""

    of: str  # the name of the run, or `base`
    study: Study
    model: str
    options: dict[str, Any]
    run: Run | None

    @property
    def name(self) -> str:
        return f"evaluate {self.of}"

    @property
    def output(self) -> Path:
        return self.study.folder / "evaluations" / self.of

    @property
    def log(self) -> Path:
        return self.study.folder / "logs" / f"evaluate-{self.of}.log"

    @property
    def on_cpu(self) -> bool:
        return self.options.get("device") == "cpu"

    @property
    def arguments(self) -> list[str]:
        if self._state == "unscored":  # no model is needed, and a copy of a study may have none
            return ["score", str(self.output.resolve())]
        given = {"model": [self.model], "output": str(self.output.resolve()), **self.options, "replace_changed": True}
        return ["eval", *as_flags(given)]

    @property
    def finished(self) -> bool:
        """Whether every task has results with these settings, of the model as it is now."""
        return self._state == "finished"

    @property
    def _state(self) -> Literal["finished", "unscored", "to do"]:
        from ebft.evaluate.eval_command import task_settings
        from ebft.evaluate.tables import is_scored

        tasks = (read_json(self.output / "results.json") or {}).get("tasks", {})
        options = EvalOptions.from_values(self.options)
        asked = {task: json_ready(task_settings(task, options)) for task in options.tasks}
        if any(tasks.get(task, {}).get("settings") != settings for task, settings in asked.items()):
            return "to do"
        if self._mark.exists() and self._mark.read_text(encoding="utf-8") != self._results_of_run:
            return "to do"  # the model was trained further since
        return "finished" if not options.score or all(is_scored(tasks[task]) for task in asked) else "unscored"

    @property
    def _mark(self) -> Path:
        """What the evaluated model's training ended with: times of files would not tell, copies have others."""
        return self.output / "of-model.sha256"

    @property
    def _results_of_run(self) -> str:
        results = None if self.run is None else self.run.output / "results.json"
        return sha256_of(results) if results is not None and results.exists() else ""

    def write(self) -> None:
        self.output.mkdir(parents=True, exist_ok=True)
        write_text(self._mark, self._results_of_run)


Job = Run | Evaluation


def command_line(job: Job) -> str:
    return shlex.join(["ebft", *job.arguments])


def last_attempt(log: Path) -> list[str]:
    """What the last attempt printed; nothing if there was none. Each begins with its command, whoever starts it."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    return f"\n{text}".rpartition(f"\n{PROMPT}")[2].splitlines()[1:]


def error_in(lines: Sequence[str]) -> str | None:
    """The first error message is the cause; None if there is none."""
    return next((line.removeprefix("ebft: ") for line in lines if line.startswith("ebft: ")), None)


def last_error(log: Path) -> str | None:
    """Why the last attempt failed; None if it did not, was stopped, or is still running."""
    found = error_in(last_attempt(log))
    return None if found == "stopped" else found


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


class Plan:
    """All jobs of a study or a sweep that are known by now.

    given_up: names of jobs that have failed and are not tried again.
    """

    def __init__(self, study: Study, given_up: Container[str] = ()) -> None:
        self.study, self.given_up = study, given_up
        self.searches: dict[str, list[Run]] = {}  # by row, all candidates
        self.final: dict[str, list[Run]] = {}  # by row, the runs to report
        self.unknown = 0  # runs and evaluations that depend on a search
        self.runs: list[Run] = []
        self._finished: dict[str, bool] = {}
        for row in study.rows:
            self._add_row(row)
        self.evaluations = self._evaluations() if study.evaluation else []

    @property
    def jobs(self) -> list[Job]:
        return [*self.runs, *self.evaluations]

    def ready(self) -> list[Job]:
        """What could run now and has not: evaluations first, so that a study that is stopped has some whole results."""
        jobs: list[Job] = [*self.evaluations, *self.runs]
        return [job for job in jobs if not self.is_finished(job) and self._can_start(job)]

    def is_finished(self, job: Job) -> bool:
        """As it was when this plan was made: the disk is asked once."""
        if job.name not in self._finished:
            self._finished[job.name] = job.finished
        return self._finished[job.name]

    def needs(self, job: Job) -> list[Run]:
        """The runs that it starts from."""
        given = job.given if isinstance(job, Run) else {**job.options, "model": job.model}
        return [run for run in self.runs if str(run.output) in (given["model"], given.get("feature_model"))]

    def _can_start(self, job: Job) -> bool:
        return all(map(self.is_finished, self.needs(job)))

    def _add_row(self, row: Row) -> None:
        before = {} if row.after is None else {run.seed: run for run in self.final[row.after]}
        features = row.settings.get("feature_model")
        above = self.study.methods[: self.study.methods.index(row.method)]
        if (row.after is not None and not before) or (features in above and not self._finals_of(features)):
            # What it starts from is not chosen yet.
            self._leave_open(row, len(row.candidates) - 1 + len(row.seeds))
            return

        def run_of(chosen: dict[str, Any], seed: int | None) -> Run:
            start = before.get(seed) or next(iter(before.values()), None)
            return self._run(row, chosen, seed, start, self._features(features, seed))

        chosen: dict[str, Any] = {}
        if len(row.candidates) > 1 or row.candidates[0]:
            self.searches[row.name] = [run_of(values, row.search_seed) for values in row.candidates]
            self.runs += self.searches[row.name]
            best = self._choose(row)
            if best is None:
                self._leave_open(row, len(row.seeds) - (row.search_seed in row.seeds))
                return
            chosen = best.chosen
        self.final[row.name] = [run_of(chosen, seed) for seed in row.seeds]
        self.runs += [run for run in self.final[row.name] if run not in self.runs]

    def _run(self, row: Row, chosen: dict[str, Any], seed: int | None, start: Run | None, features: str | None) -> Run:
        seeded = chosen if seed is None else {**chosen, "seed": seed}
        name = ",".join(part for part in (row.name, name_of(seeded)) if part)
        values = {**row.settings, **seeded}
        if start is not None:
            # The features stay those of the model that everything starts from, so that the curves compare.
            values = {"feature_model": values["model"], **values, "model": str(start.output)}
        if values.get("feature_model") in self.study.methods:
            values.pop("feature_model")  # of a method that comes later, or is this one
        if features is not None:
            values["feature_model"] = features
        folder = self.study.folder if self.study.is_sweep else self.study.folder / "runs"
        recipe = load({**values, "output_dir": str((folder / name).resolve())}, row.command)
        steps, epochs = recipe.training.max_steps, recipe.training.num_train_epochs
        length = f"{steps:,} steps" if steps > 0 else f"{epochs:g} epoch{'s' * (epochs != 1)}"
        return Run(name, self.study, row, chosen, seed, recipe.given, length)

    def _leave_open(self, row: Row, runs: int) -> None:
        self.final.setdefault(row.name, [])
        self.unknown += runs + (len(row.seeds) if self.study.evaluation else 0)

    def _finals_of(self, method: Any) -> list[Run]:
        return [run for final in self.final.values() for run in final if run.row.method == method]

    def _features(self, method: Any, seed: int | None = None) -> str | None:
        """`feature_model` may be the name of a method above: its final model of this seed is meant, or its first."""
        runs = self._finals_of(method)
        runs = [run for run in runs if run.seed == seed] or runs
        return str(runs[0].output) if runs else None

    def _choose(self, row: Row) -> Run | None:
        """The best candidate on validation; None as long as one of them may still come to its end."""
        candidates = self.searches[row.name]
        if not all(self.is_finished(run) or run.name in self.given_up for run in candidates):
            return None
        found = {run.name: validated(run, row.choose_by) for run in candidates if self.is_finished(run)}
        known = [run for run in candidates if (value := found.get(run.name)) is not None and math.isfinite(value)]
        return better(row.choose_by)(known, key=lambda run: found[run.name], default=None)

    def _evaluations(self) -> list[Evaluation]:
        study, options = self.study, dict(self.study.evaluation)
        if (features := options.get("feature_model")) in study.methods:
            options["feature_model"] = self._features(features)
            if options["feature_model"] is None:
                self.unknown += len(self.base_models())
                return []
        found = [Evaluation(name, study, model, options, None) for name, model in self.base_models().items()]
        finals = [run for runs in self.final.values() for run in runs]
        return found + [Evaluation(run.name, study, str(run.output), options, run) for run in finals]

    def base_models(self) -> dict[str, str]:
        """The models that runs start from, by name: `base`, or several if the study is about models."""
        models = list(dict.fromkeys(str(row.settings["model"]) for row in self.study.rows if row.after is None))
        if len(models) == 1:
            return {BASE: models[0]}
        return {f"{BASE},{name_of({'model': model})}": model for model in models}


def validated(run: Run, metric: str) -> float | None:
    """A metric of validation after training."""
    value = (run.results().get("after") or {}).get(f"eval_{metric}")
    return float(value) if isinstance(value, int | float) else None
