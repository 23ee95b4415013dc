"""What folders of runs and studies hold: for every row of a table the runs, what tests of their final models found, and
what is missing, broken or does not compare. Only files are read; a run or study may still be going on."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ebft.config.evaluation import HARMLESS
from ebft.config.method import settings_that_change
from ebft.errors import ConfigError
from ebft.evaluate.tables import by_problem, is_scored
from ebft.method.measures import NAMES, Record, SumsAndCounts, sums_by_metric
from ebft.runtime.files import Json, read_json, read_jsonl
from ebft.studies.statistics import Corpus, Measured, measured
from ebft.studies.study import last_error

Scores = dict[str, Measured | Corpus]  # by `<task> <metric>`
VALIDATION = "validation"  # begins the names of metrics where nothing was tested
METRICS_FILE = "metrics.jsonl"
_NO_METRICS = ("_se", "_runtime", "_per_second", "eval_reward")  # ends of keys; the last repeats the proxy
# What a run had cost when a metric was measured: horizontal axes of curves, in metrics.jsonl and in figures.
AXES = {
    "steps": ("step", "steps"),
    "tokens": ("spent/tokens", "tokens"),
    "seconds": ("spent/seconds", "seconds"),
    "flops": ("spent/flops", "FLOPs"),
}


# ---- runs ----------------------------------------------------------------------------------------------------------


@dataclass
class Run:
    """The output folder of a training run, finished or not."""

    name: str
    folder: Path
    method: str  # ebft, sft or rlvr
    finished: bool
    validation: Json | None  # how its validation measures
    entries: list[Json]  # lines of metrics.jsonl
    records: list[Record]  # of single sequences after training, if it has finished
    apart: dict[str, str] = field(default_factory=dict)  # how its validation differs from that of the first

    def measured(self, key: str) -> list[Json]:
        """The entries with a value of this, by step; of two at one step, the later."""
        found = {entry["step"]: entry for entry in self.entries if entry.get(key) is not None}
        return [found[step] for step in sorted(found)]

    def total_costs(self) -> Json:
        """The last known value of everything, such as `step` and `spent/tokens`."""
        return {key: value for entry in self.entries for key, value in entry.items()}

    def numbers(self, metrics: Iterable[str]) -> Json:
        """For compare.json."""
        found: Json = {"folder": str(self.folder), "method": self.method, "finished": self.finished, "metrics": {}}
        for metric in metrics:
            key = f"eval_{metric}"
            found["metrics"][metric] = [
                {"step": entry["step"], "value": entry[key], "standard_error": entry.get(f"{key}_se")}
                | {title: entry[column] for column, title in AXES.values() if entry.get(column) is not None}
                for entry in self.measured(key)
            ]
        return found


def read_run(folder: Path, title: str) -> Run:
    """Also one that has not logged anything yet."""
    results: Json = read_json(folder / "results.json") or {}
    records = read_jsonl(folder / "validation-after.jsonl") if "after" in results else []
    ruler = results.get("ruler")
    expected = (ruler or {}).get("validation_sequences", len(records))
    if records and len(records) != expected:  # a part of them would be compared as if it were all
        raise ConfigError(f"{folder}: validation-after.jsonl holds {len(records)} of {expected} sequences: cut off")
    method, entries = results.get("method", "ebft"), read_jsonl(folder / METRICS_FILE)
    return Run(title, folder, method, "steps" in results, ruler, entries, records)


def validation_metrics(runs: Iterable[Run]) -> list[str]:
    """Those that have a value, the usual ones first."""
    keys = {key for run in runs for entry in run.entries for key, value in entry.items() if value is not None}
    found = {key[5:] for key in keys if key.startswith("eval_") and not key.endswith(_NO_METRICS)}
    return [*(name for name in NAMES if name in found), *sorted(found - {*NAMES})]


def apart(mine: Json, other: Json) -> dict[str, str]:
    """What differs, by name, and how it is told."""
    names = sorted(name for name in {**mine, **other} if mine.get(name) != other.get(name))
    return {name: f"{name} {str(mine.get(name))[:40]} and {str(other.get(name))[:40]}" for name in names}


def validated_apart(run: Run, reference: Run) -> dict[str, str]:
    """The settings by which the validation of a run, if there was one, differs from that of another."""
    if run is reference or not run.entries:
        return {}
    if run.validation is None or reference.validation is None:
        return {"ruler": "they do not both say how"}
    # A moving average is of the run's own weights: two are never the same.
    own = {"network": "moving averages"} if run.validation.get("network") == "moving average" else {}
    return apart(run.validation, reference.validation) | own


def compares(metric: str, differ: Collection[str]) -> bool:
    """Whether the values of a metric compare although these settings differ."""
    harmless = {*settings_that_change("proxy")} if metric not in ("whitened_proxy", "reward") else set[str]()
    if metric.endswith("cross_entropy"):
        harmless |= {"network", *settings_that_change("features")}
    return {*differ} <= harmless


# ---- rows of models ------------------------------------------------------------------------------------------------


@dataclass
class Model:
    """One final model of a row."""

    seed: int | None = None  # None: nothing was trained
    run: Run | None = None
    problems: list[str] = field(default_factory=list)  # what is missing, broken, or does not compare
    evaluation: Path | None = None
    results: Json = field(default_factory=dict)  # of the evaluation, by task
    scores: Scores = field(default_factory=dict)


@dataclass
class Row:
    title: str
    kind: str  # ebft, sft, rlvr, or base
    models: list[Model]
    after: str | None = None  # the method whose final models it started from

    def scores(self, metric: str) -> list[Any]:
        return [model.scores[metric] for model in self.models if metric in model.scores]


@dataclass
class Evidence:
    folder: Path
    manifest: Json
    rows: list[Row]

    def __post_init__(self) -> None:
        """Numbers are put together only if they were measured on the same data in the same way."""
        self.models = [model for row in self.rows for model in row.models]
        # The first run of each row, by its title.
        self.runs = {row.title: m.run for row in self.rows for m in row.models[:1] if m.run is not None}
        self._drop_what_was_tested_otherwise()
        is_tested = any(model.results for model in self.models)
        known = [model.run for model in self.models if model.run is not None and model.run.validation is not None]
        for model in self.models:
            if known and model.run is not None:
                model.run.apart = validated_apart(model.run, known[0])
                if differ := ", ".join(model.run.apart.values()):
                    model.problems.append(f"it and {known[0].name} were validated differently ({differ})")
            for metric in [name for name in model.scores if name.startswith(VALIDATION)]:
                if is_tested or (model.run is not None and not compares(metric.split()[1], model.run.apart)):
                    del model.scores[metric]
        self.metrics = list(dict.fromkeys(metric for model in self.models for metric in model.scores))

    @property
    def notes(self) -> list[str]:
        """All problems, each with the models that have it."""
        found: dict[str, list[str]] = defaultdict(list)
        for row in self.rows:
            for model in row.models:
                for problem in model.problems:
                    found[problem].append(row.title + ("" if model.seed is None else f", seed {model.seed}"))
        return [f"{'; '.join(models)}: {problem}" for problem, models in found.items()]

    def _drop_what_was_tested_otherwise(self) -> None:
        first: dict[str, tuple[str, Json]] = {}
        evaluated = [(row.title, model) for row in self.rows for model in row.models if model.results]
        tasks = dict.fromkeys(task for _, model in evaluated for task in model.results)
        for title, model in evaluated:
            lacking = [task for task in tasks if task not in model.results]
            model.problems += [f"{task} was measured on other models and not here" for task in lacking]
            for task, entry in list(model.results.items()):
                how = _how_measured(entry)
                of, theirs = first.setdefault(task, (title, how))
                if differ := ", ".join(apart(how, theirs).values()):
                    what = f"{task} was measured differently than of {of} ({differ}) and is left out"
                    model.problems.append(f"{what}; the same `ebft study run` measures again what is old")
                    model.scores = {n: score for n, score in model.scores.items() if not n.startswith(f"{task} ")}
                    del model.results[task]  # nor is it drawn
                elif not is_scored(entry):
                    where = f"run `ebft score {self.folder}`, where there is a sandbox"
                    model.problems.append(f"{task} is not all scored yet: {where}")


def read_runs(place: Path, folders: Sequence[str], names: Sequence[str]) -> Evidence:
    """Each run is a row, by its name; equal names become paths."""
    places = [Path(folder).expanduser() for folder in folders]
    for folder in places:
        if not (folder / METRICS_FILE).is_file():
            raise ConfigError(f"{folder} is no output folder of a run, or nothing is logged yet: no {METRICS_FILE}")
    short = names or [folder.resolve().name for folder in places]
    titles = folders if len(set(short)) < len(short) else short
    runs = [read_run(folder, title) for folder, title in zip(places, titles, strict=True)]
    return Evidence(place, {}, [Row(r.name, r.method, [Model(run=r, scores=scores_of_run(r))]) for r in runs])


def read_study_folder(folder: Path) -> Evidence:
    manifest = read_json(folder / "study.json")
    if not isinstance(manifest, dict) or "rows" not in manifest:
        raise ConfigError(f"{folder} holds no study.json of a study; give the output folder of `ebft study run`")
    rows = []
    for given in manifest["rows"]:
        models = [_read_model(folder, given["title"], one) for one in given["models"]]
        models = models or [Model(problems=["waits for a search to choose its settings"])]
        rows.append(Row(given["title"], given["kind"], models, given.get("after")))
    return Evidence(folder, manifest, rows)


def _read_model(folder: Path, title: str, given: Json) -> Model:
    model = Model(given["seed"])
    if given["run"] is not None:
        place = folder / given["run"]
        error = last_error(folder / "logs" / f"{place.name}.log")
        model.run = read_run(place, title)
        if not model.run.finished:
            steps = f"{model.run.total_costs().get('step', 0):,} steps"
            model.problems.append(f"failed after {steps}: {error}" if error else f"not finished: {steps}")
            return model
        model.scores = scores_of_run(model.run, model.seed)
    if given["evaluation"] is not None:
        place = folder / given["evaluation"]
        _read_evaluation(model, place, last_error(folder / "logs" / f"evaluate-{place.name}.log"))
    return model


def scores_of_run(run: Run, seed: int | None = None) -> Scores:
    """What is known of a run without an evaluation."""
    return {f"{VALIDATION} {name}": score for name, score in _by_sequence(run.records, seed).items()}


def _read_evaluation(model: Model, folder: Path, error: str | None) -> None:
    found = read_json(folder / "results.json") or {}
    if "tasks" not in found:
        model.problems.append(f"its evaluation failed: {error}" if error else "its evaluation is not there yet")
        return
    model.evaluation, model.results = folder, found["tasks"]
    if error:
        model.problems.append(f"its evaluation failed, and the numbers are of one before: {error}")
    for task, entry in model.results.items():
        scores = _scores_of_task(task, entry, folder, model.seed)
        model.scores |= {f"{task} {name}": score for name, score in scores.items()}


def _scores_of_task(task: str, entry: Json, folder: Path, seed: int | None) -> Scores:
    """The values of an evaluation, in place of which stands what single items gave, where that is known."""
    found = {**entry["metrics"], **entry.get("rollouts", {})}
    scores: Scores = {
        name: Measured(float(one["value"]), seed=seed, error=one.get("standard_error"))
        for name, one in found.items()
        if one["value"] is not None
    }
    if task == "calibration":
        records = [r for r in read_jsonl(folder / "calibration.jsonl") if r["sequence"] < entry["sequences"]]
        # While they are measured anew, nothing is known of items.
        of_items = _by_sequence(records, seed) if len(records) == entry["sequences"] else {}
        return scores | {name: score for name, score in of_items.items() if name in scores or "cfm_at_" in name}
    if task == "translation":
        rows = read_jsonl(folder / "translation.greedy.scores.jsonl")
        items = tuple(row["task_id"] for row in rows)
        for name in [name for name in scores if name.startswith("greedy_") and rows]:
            score = name.removeprefix("greedy_")
            if f"{score}_statistics" in rows[0]:
                scores[name] = Corpus(score, np.array([row[f"{score}_statistics"] for row in rows]), seed, items)
            elif score in rows[0]:
                scores[name] = _mean({(row["task_id"], ""): row[score] for row in rows}, seed)
        return scores
    of_problems = {metric: _of_problems(entry, metric, folder) for metric in entry["metrics"]}
    return scores | {metric: _mean(found, seed) for metric, found in of_problems.items() if found}


def _mean(values: dict[tuple[str, str], float], seed: int | None) -> Measured:
    return measured(SumsAndCounts(list(values.values()), [1] * len(values)), seed, tuple(values))


def _of_problems(entry: Json, metric: str, folder: Path) -> dict[tuple[str, str], float]:
    """A value for each problem, where the metric is their mean. Over several sets of problems it is the plain mean of
    theirs: each weighs the same, however many problems it has."""
    parts = [part for part in entry.get("parts", [entry]) if not part.get("skipped")]
    rates = {part["name"]: by_problem(folder, part, metric) for part in parts}
    total = sum(map(len, rates.values()))
    weights = {name: total / (len(parts) * len(of_set)) for name, of_set in rates.items() if of_set}
    return {(name, key): rate * weights[name] for name, of_set in rates.items() for key, rate in of_set.items()}


def _by_sequence(records: list[Json], seed: int | None) -> dict[str, Measured]:
    """Of every metric of validation or calibration. `reward` is not one of them: it repeats the proxy."""
    items = tuple((record["sequence"], record["tokens"]) for record in records)
    sums = {name: one for name, one in sums_by_metric(records).items() if name != "reward"}
    return {name: measured(one, seed, items) for name, one in sums.items() if not any(map(math.isnan, one.sums))}


def _how_measured(entry: Json) -> Json:
    """What the numbers of a task depend on, beside the model."""
    found = {name: value for name, value in entry.get("settings", {}).items() if name not in HARMLESS}
    features = {name: value for name, value in entry.get("features", {}).items() if name != "model"}
    return found | {f"features {name}": value for name, value in features.items()} | {"text": entry.get("text")}
