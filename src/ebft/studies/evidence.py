"""What a study's folder holds: for every row of its tables the runs, what tests of their final models found, and what
is missing or broken. Only files are read; a study may still be running."""

from __future__ import annotations

import math
import textwrap
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ebft.config.evaluation import HARMLESS
from ebft.errors import ConfigError
from ebft.evaluate.differences import by_problem
from ebft.evaluate.tables import is_scored
from ebft.method.measures import SumsAndCounts, sums_by_metric
from ebft.runtime.files import read_json, read_jsonl
from ebft.studies import jobs
from ebft.studies.runs import METRICS_FILE, Json, Run, compares, read_run, validated_apart, what_differs
from ebft.studies.statistics import Corpus, Measured, measured

VALIDATION = "validation"  # begins the names of metrics where nothing was tested


class Score(NamedTuple):
    """A metric of one model."""

    value: float
    error: float | None = None  # standard error, where no items are known
    by_item: Measured | Corpus | None = None
    items: tuple[object, ...] = ()  # what the items are: only the same ones are compared


@dataclass
class Model:
    """One final model of a row."""

    seed: int | None  # None: nothing was trained
    run: Run | None = None
    problem: str | None = None  # why there is no final model, or no evaluation of it
    evaluation: Path | None = None
    results: Json = field(default_factory=dict)  # of the evaluation, by task
    scores: dict[str, Score] = field(default_factory=dict)

    def drop(self, task: str) -> None:
        self.scores = {name: score for name, score in self.scores.items() if not name.startswith(f"{task} ")}


@dataclass
class ReportRow:
    name: str
    title: str
    kind: str  # ebft, sft, rlvr, or base
    method: str
    values: Json  # of its grid
    models: list[Model]
    after: str | None = None  # the method whose final models it started from

    def scores(self, metric: str) -> list[Score]:
        return [model.scores[metric] for model in self.models if metric in model.scores]


@dataclass
class Evidence:
    name: str
    folder: Path
    rows: list[ReportRow]
    manifest: Json
    notes: list[str] = field(default_factory=list)

    @property
    def models(self) -> list[Model]:
        return [model for row in self.rows for model in row.models]

    @property
    def metrics(self) -> list[str]:
        return list(dict.fromkeys(metric for model in self.models for metric in model.scores))

    @property
    def reference(self) -> Run | None:
        """The run that most others were validated like."""
        known = [model.run for model in self.models if model.run is not None and model.run.validation is not None]
        return max(known, key=lambda run: sum(not validated_apart(run, other) for other in known), default=None)


def read_study_folder(folder: Path) -> Evidence:
    manifest = read_json(folder / "study.json")
    if not isinstance(manifest, dict) or "rows" not in manifest:
        raise ConfigError(f"{folder} holds no study.json of a study; give the output folder of `ebft study run`")
    evidence = Evidence(str(manifest["study"]), folder, [], manifest)
    for given in manifest["rows"]:
        models = [_read_model(folder, given["title"], one) for one in given["models"]]
        models = models or [Model(None, problem="waits for a search to choose its settings")]
        fields = {name: given[name] for name in ("name", "title", "kind", "method", "values")}
        evidence.rows.append(ReportRow(**fields, models=models, after=given.get("after")))
    if any(model.results for model in evidence.models):
        for model in evidence.models:
            model.drop(VALIDATION)
    evidence.notes += _tasks_of_some(evidence)
    _drop_what_was_measured_otherwise(evidence)
    for row in evidence.rows:
        for model in (model for model in row.models if model.problem):
            seed = "" if model.seed is None else f", seed {model.seed}"
            evidence.notes.append(f"{row.title}{seed}: {model.problem}")
    _drop_validation_that_does_not_compare(evidence)
    return evidence


def _read_model(folder: Path, title: str, given: Json) -> Model:
    model = Model(given["seed"])
    if given["run"] is not None:
        model.problem = _read_run(model, folder / given["run"], _error(folder / given["log"]))
        if model.run is not None:
            model.run.name = title
        if model.run is None or not model.run.finished:
            return model
        found = scores_of_records(model.run.records, model.seed)  # for a study that tests nothing
        model.scores = {f"{VALIDATION} {name}": score for name, score in found.items()}
        if logged := model.run.rewards():
            last = [entry["reward"] for entry in logged if entry["step"] > 0.9 * logged[-1]["step"]]
            model.scores["reward"] = Score(sum(last) / len(last) if last else logged[-1]["reward"])
    if given["evaluation"] is not None:
        error = _error(folder / given["evaluation_log"])
        model.problem = _read_evaluation(model, folder / given["evaluation"], error) or model.problem
    return model


def _error(log: Path) -> str | None:
    error = jobs.last_error(log)
    return error and textwrap.shorten(error, 160, placeholder=" ...")  # all of it is in the log


def _read_run(model: Model, place: Path, error: str | None) -> str | None:
    """What is wrong with it."""
    if not (place / METRICS_FILE).exists():
        return f"failed: {error}" if error else "nothing is logged yet" if place.is_dir() else "has not started"
    try:
        model.run = read_run(place)
    except ConfigError as broken:
        return f"broken: {broken}"
    if not model.run.finished:
        steps = model.run.total_costs().get("step", 0)
        return f"failed after {steps:,} steps: {error}" if error else f"not finished: {steps:,} steps"
    return None


def _read_evaluation(model: Model, folder: Path, error: str | None) -> str | None:
    """What is wrong with it."""
    found = read_json(folder / "results.json")
    if not isinstance(found, dict) or not isinstance(found.get("tasks"), dict):
        broken = "its evaluation is broken" if (folder / "results.json").exists() else "not evaluated yet"
        return f"its evaluation failed: {error}" if error else broken
    model.evaluation, model.results = folder, found["tasks"]
    problem = error and f"its evaluation failed, and the numbers are of one before: {error}"
    for task, entry in model.results.items():
        try:
            scores = _scores_of_task(task, entry, folder, model.seed)
            model.scores |= {f"{task} {name}": score for name, score in scores.items()}
        except (KeyError, TypeError, ValueError) as broken:
            problem = f"its evaluation of {task} is broken: {type(broken).__name__} {broken}"
    return problem


def _scores_of_task(task: str, entry: Json, folder: Path, seed: int | None) -> dict[str, Score]:
    entries = {name: one for name, one in (entry["metrics"] | entry.get("rollouts", {})).items()}
    known = {name: one for name, one in entries.items() if one["value"] is not None}
    scores = {name: Score(float(one["value"]), one.get("standard_error")) for name, one in known.items()}
    if task == "calibration":
        records = [r for r in read_jsonl(folder / "calibration.jsonl") if r["sequence"] < entry["sequences"]]
        if len(records) < entry["sequences"]:
            raise ValueError(f"calibration.jsonl holds {len(records)} of {entry['sequences']} sequences")
        found = scores_of_records(records, seed)
        return scores | {name: score for name, score in found.items() if name in scores or "cfm_at_" in name}
    if task == "translation":
        rows = read_jsonl(folder / "translation.greedy.scores.jsonl")
        items = tuple(row["task_id"] for row in rows)
        for name in (name for name in scores if name.startswith("greedy_") and rows):
            score = name.removeprefix("greedy_")
            if score == "bleu" or score == "chrf":
                statistics = np.array([row[f"{score}_statistics"] for row in rows])
                scores[name] = Score(scores[name].value, None, Corpus(score, statistics, seed), items)
            elif score in rows[0]:
                scores[name] = _mean([row[score] for row in rows], items, seed)
        return scores
    of_problems = {metric: _of_problems(entry, metric, folder) for metric in entry["metrics"]}
    return scores | {m: _mean(list(found.values()), tuple(found), seed) for m, found in of_problems.items() if found}


def _mean(values: Sequence[float], items: tuple[object, ...], seed: int | None) -> Score:
    found = measured(SumsAndCounts(values, [1] * len(values)), seed)
    return Score(found.value, None, found, items)


def _of_problems(entry: Json, metric: str, folder: Path) -> dict[tuple[str, str], float]:
    """A value for each problem, where the metric is their mean. Over several sets of problems it is the plain mean of
    theirs: each weighs the same, however many problems it has."""
    parts = [part for part in entry.get("parts", [entry]) if not part.get("skipped")]
    rates = {part["name"]: by_problem(folder, part, metric) for part in parts}
    total = sum(map(len, rates.values()))
    weights = {name: total / (len(parts) * len(of_set)) for name, of_set in rates.items() if of_set}
    return {(name, key): rate * weights[name] for name, of_set in rates.items() for key, rate in of_set.items()}


def scores_of_records(records: list[Json], seed: int | None) -> dict[str, Score]:
    """Of every metric of validation or calibration, by sequence. `reward` is not one of them: it repeats the proxy."""
    items, found = tuple((record["sequence"], record["tokens"]) for record in records), {}
    for name, sums in sums_by_metric(records).items():
        if name != "reward" and not any(map(math.isnan, sums.sums)):
            one = measured(sums, seed)
            found[name] = Score(one.value, None, one, items)
    return found


def _tasks_of_some(evidence: Evidence) -> list[str]:
    """Which tasks were measured on some of the models only: a row's number of seeds is not that of such a column."""
    notes = []
    evaluated = {row.title: found for row in evidence.rows if (found := [m.results for m in row.models if m.results])}
    for task in dict.fromkeys(task for of_row in evaluated.values() for results in of_row for task in results):
        have = {t: sum(task in one and is_scored(one[task]) for one in found) for t, found in evaluated.items()}
        lacking = [f"{n} of {len(evaluated[t])} of {t}" for t, n in have.items() if n < len(evaluated[t])]
        if lacking and any(have.values()):
            notes.append(f"{task} was measured on some of the final models only: {', '.join(lacking)}")
        if not all(is_scored(one[task]) for of_row in evaluated.values() for one in of_row if task in one):
            notes.append(f"{task} is not all scored yet: run `ebft score {evidence.folder}`, where there is a sandbox")
    return notes


def _drop_what_was_measured_otherwise(evidence: Evidence) -> None:
    """Numbers of a task are put together only if it was measured on the same data in the same way."""
    first: dict[str, tuple[str, Json]] = {}
    for row in evidence.rows:
        for model in row.models:
            for task, entry in list(model.results.items()):
                how = how_measured(entry)
                name, theirs = first.setdefault(task, (row.title, how))
                if differ := sorted(key for key in {*how, *theirs} if how.get(key) != theirs.get(key)):
                    values = {key: [str(of.get(key, "nothing"))[:40] for of in (how, theirs)] for key in differ}
                    shown = ", ".join(f"{key} {mine} and {other}" for key, (mine, other) in values.items())
                    evidence.notes.append(
                        f"{row.title} and {name} were measured differently by {task} ({shown}), so {row.title} has no "
                        "numbers of it here; the same `ebft study run` measures again what is old"
                    )
                    model.drop(task)
                    del model.results[task]


def how_measured(entry: Json) -> Json:
    """What the numbers of a task depend on, beside the model."""
    found = {name: value for name, value in entry.get("settings", {}).items() if name not in HARMLESS}
    features = entry.get("features", {})
    found |= {f"features {name}": features[name] for name in ("weights", "taps", "pooling", "normalize") if features}
    return found | ({"text": entry["text"]} if "text" in entry else {})


def _drop_validation_that_does_not_compare(evidence: Evidence) -> None:
    """Where nothing was tested, of the numbers of validation only those that compare are put together."""
    reference, alike = evidence.reference, defaultdict[str, dict[str, None]](dict)
    for model in (model for model in evidence.models if model.run is not None):
        if model.run is not None and (said := what_differs(model.run, reference)) is not None:
            alike[said][model.run.name] = None  # one note for all of which the same is said
            differ = validated_apart(model.run, reference)
            apart = [m for m in model.scores if m.startswith(f"{VALIDATION} ") and not compares(m.split()[1], differ)]
            model.scores = {name: score for name, score in model.scores.items() if name not in apart}
    evidence.notes += [f"Validation, in the curves: {', '.join(names)} {said}" for said, names in alike.items()]
