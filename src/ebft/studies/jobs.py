"""The jobs of a study or a sweep, each one `ebft` command with a log, and which of them can run now: a function of what
is on the disk.

Runs come before what starts from them, a search before the other seeds of what it chose, and a model before its
evaluation. A search runs every candidate with one seed; the best on validation is trained with the others too.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Container
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import yaml

from ebft.config.evaluation import EvalOptions
from ebft.runtime.files import json_ready, read_json, sha256_of, write_text
from ebft.studies.runs import better
from ebft.studies.study_file import Row, Settings, Study, load, name_of

BASE = "base"  # the name of the model that everything starts from
PROMPT = "$ "  # begins the line of a command in a log
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # recipes are read often


@dataclass(frozen=True)
class _Command:
    """An `ebft` command with a log. What the disk says of it is asked once."""

    name: str
    study: Study
    output: Path
    arguments: list[str]
    on_cpu: bool
    needed: dict[Path, str]  # small files that are written before it starts

    @property
    def log(self) -> Path:
        return self.study.folder / "logs" / f"{self.name}.log"

    def prepare(self) -> None:
        for file in (self.log, *self.needed):
            file.parent.mkdir(parents=True, exist_ok=True)
        for file, text in self.needed.items():
            write_text(file, text)
        self.log.touch()  # it was tried, even if Slurm never comes to run it


@dataclass(frozen=True)
class Run(_Command):
    """A training run: a candidate of a row's search, with a seed."""

    row: Row
    chosen: Settings  # of what is searched
    seed: int | None
    given: Settings  # all settings of its recipe
    length: str  # how long it trains, in words

    @cached_property
    def results(self) -> Settings:
        return read_json(self.output / "results.json") or {}

    @cached_property
    def finished(self) -> bool:
        """Whether this very recipe has run to its end; after a change, such as more steps, it has to continue."""
        if "steps" not in self.results:
            return False
        before = yaml.load((self.output / "recipe.yaml").read_text(encoding="utf-8"), _Loader)
        return self._anywhere(before) == self._anywhere(self.given)

    def _anywhere(self, given: Settings) -> Settings:
        """Without the place of the study: a copy of it is as finished as it was."""
        place = given["output_dir"].removesuffix(self.name)
        return {name: value.removeprefix(place) if isinstance(value, str) else value for name, value in given.items()}

    def validated(self) -> float | None:
        """What the search chooses by, after training."""
        value = (self.results.get("after") or {}).get(f"eval_{self.row.choose_by}")
        return value if isinstance(value, int | float) and math.isfinite(value) else None


@dataclass(frozen=True)
class Evaluation(_Command):
    """`ebft eval` of a final model, or of the model that everything starts from."""

    of: str  # the name of the run, or `base`
    model: str
    options: Settings

    @cached_property
    def finished(self) -> bool:
        """Whether every task has results with these settings, of the model as it is now."""
        from ebft.evaluate.eval_command import task_settings
        from ebft.evaluate.tables import is_scored

        if any(file.exists() and file.read_text(encoding="utf-8") != text for file, text in self.needed.items()):
            return False  # the model was trained further since
        tasks = (read_json(self.output / "results.json") or {}).get("tasks", {})
        options = EvalOptions.from_values(self.options)
        return all(
            tasks.get(task, {}).get("settings") == json_ready(task_settings(task, options))
            and (is_scored(tasks[task]) or not options.score)
            for task in options.tasks
        )


Job = Run | Evaluation


def command_line(job: Job) -> str:
    return shlex.join(["ebft", *job.arguments])


def state_of(job: Job) -> str:
    """For people."""
    if job.finished:
        return "finished"
    if (error := last_error(job.log)) is not None:
        return f"failed: {error}"
    return "stopped" if job.log.exists() and job.log.stat().st_size else "to do"


def last_attempt(log: Path) -> list[str]:
    """What the last attempt printed; nothing if there was none. Each begins with its command, whoever starts it."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    return f"\n{text}".rpartition(f"\n{PROMPT}")[2].splitlines()[1:]


def last_error(log: Path) -> str | None:
    """Why the last attempt failed: its first error message is the cause. None if it did not, was stopped, or is still
    running."""
    found = next((line.removeprefix("ebft: ") for line in last_attempt(log) if line.startswith("ebft: ")), None)
    return None if found == "stopped" else found


class Plan:
    """All jobs of a study or a sweep that are known by now.

    given_up: names of jobs that have failed and are not tried again.
    """

    def __init__(self, study: Study, given_up: Container[str] = ()) -> None:
        self.study, self.given_up = study, given_up
        self.searches: dict[str, list[Run]] = {}  # by row, all candidates
        self.final: dict[str, list[Run]] = {}  # by row, the runs to report; none as long as a search decides
        self.unknown = 0  # runs and evaluations that depend on a search
        self._runs: dict[str, Run] = {}
        for row in study.rows:
            self.final[row.name] = self._add(row)
        self.evaluations = self._evaluations() if study.evaluation else []

    @property
    def runs(self) -> list[Run]:
        return list(self._runs.values())

    @property
    def jobs(self) -> list[Job]:
        return [*self.runs, *self.evaluations]

    @property
    def unfinished(self) -> list[Job]:
        return [job for job in self.jobs if not job.finished]

    def ready(self) -> list[Job]:
        """What could run now and has not: evaluations first, so that a study that is stopped has some whole results."""
        first = sorted(self.unfinished, key=lambda job: isinstance(job, Run))
        return [job for job in first if all(run.finished for run in self.needs(job))]

    def needs(self, job: Job) -> list[Run]:
        """The runs that it starts from."""
        given = job.given if isinstance(job, Run) else {**job.options, "model": job.model}
        return [run for run in self.runs if str(run.output) in (given["model"], given.get("feature_model"))]

    def base_models(self) -> dict[str, str]:
        """The models that runs start from, by name: `base`, or several if the study is about models."""
        models = list(dict.fromkeys(str(row.settings["model"]) for row in self.study.rows if row.after is None))
        names = [f"{BASE},{name_of({'model': model})}" for model in models] if len(models) > 1 else [BASE]
        return dict(zip(names, models, strict=True))

    def _add(self, row: Row) -> list[Run]:
        """Its runs as far as they are known; returns those to report."""
        tests = len(row.seeds) if self.study.evaluation else 0
        if not all(self.final[name] for name in (row.after, row.features) if name is not None):
            self.unknown += len(row.candidates) - 1 + len(row.seeds) + tests
            return []
        chosen = row.candidates[0]
        if chosen:
            self.searches[row.name] = [self._run(row, values, row.search_seed) for values in row.candidates]
            best = self._best(row)
            if best is None:
                self.unknown += len({*row.seeds} - {row.search_seed}) + tests
                return []
            chosen = best.chosen
        return [self._run(row, chosen, seed) for seed in row.seeds]

    def _best(self, row: Row) -> Run | None:
        """The best candidate on validation; None as long as one of them may still come to its end."""
        candidates = self.searches[row.name]
        if not all(run.finished or run.name in self.given_up for run in candidates):
            return None
        known = [run for run in candidates if run.finished and run.validated() is not None]
        return better(row.choose_by)(known, key=Run.validated, default=None)

    def _run(self, row: Row, chosen: Settings, seed: int | None) -> Run:
        seeded = chosen if seed is None else {**chosen, "seed": seed}
        name = ",".join(part for part in (row.name, name_of(seeded)) if part)
        if name in self._runs:
            return self._runs[name]
        values = {**row.settings, **seeded}
        if row.after is not None:
            # The features stay those of the model that everything starts from, so that the curves compare.
            values = {"feature_model": values["model"], **values, "model": self._final_model(row.after, seed)}
        if row.features is not None:
            values["feature_model"] = self._final_model(row.features, seed)
        folder = self.study.folder if self.study.is_sweep else self.study.folder / "runs"
        recipe = load({**values, "output_dir": str((folder / name).resolve())}, row.command)
        steps, epochs = recipe.training.max_steps, recipe.training.num_train_epochs
        length = f"{steps:,} steps" if steps > 0 else f"{epochs:g} epoch{'s' * (epochs != 1)}"
        file = (self.study.folder / ("points" if self.study.is_sweep else "recipes") / f"{name}.yaml").resolve()
        needed = {file: yaml.safe_dump(recipe.given, sort_keys=False)}
        arguments = [row.command, "--config", str(file), "--resume"]  # from the beginning, if there is no checkpoint
        output, on_cpu = Path(recipe.given["output_dir"]), bool(recipe.given.get("use_cpu"))
        command = (name, self.study, output, arguments, on_cpu, needed)
        self._runs[name] = Run(*command, row, chosen, seed, recipe.given, length)
        return self._runs[name]

    def _final_model(self, row: str, seed: int | None) -> str:
        """Of this seed, or the only one."""
        finals = self.final[row]
        return str(next((run for run in finals if run.seed == seed), finals[0]).output)

    def _evaluations(self) -> list[Evaluation]:
        options, bases = dict(self.study.evaluation), self.base_models()
        finals = [run for runs in self.final.values() for run in runs]
        method = options.get("feature_model")
        if any(row.method == method for row in self.study.rows):
            features = next((run for run in finals if run.row.method == method), None)
            if features is None:
                self.unknown += len(bases) + len(finals)
                return []
            options["feature_model"] = str(features.output)
        found = [self._evaluation(name, model, options, None) for name, model in bases.items()]
        return found + [self._evaluation(run.name, str(run.output), options, run) for run in finals]

    def _evaluation(self, of: str, model: str, options: Settings, run: Run | None) -> Evaluation:
        output = self.study.folder / "evaluations" / of
        given = {**options, "model": model, "output": str(output.resolve()), "replace_changed": True}
        listed = {name: (value or ["none"]) if isinstance(value, list) else [value] for name, value in given.items()}
        flags = [f"--{name.replace('_', '-')}={value}" for name, values in listed.items() for value in values]
        # What the training of the model ended with: times of files would not tell, copies have others.
        trained = sha256_of(run.output / "results.json") if run is not None and run.results else ""
        needed, on_cpu = {output / "of-model.sha256": trained}, options.get("device") == "cpu"
        command = (f"evaluate-{of}", self.study, output, ["eval", *flags], on_cpu, needed)
        return Evaluation(*command, of, model, options)
