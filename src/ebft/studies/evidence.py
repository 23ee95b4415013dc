"""What a study's folder holds: for every row of its tables the runs, what tests of their final models found, and what
is missing or broken. Only files are read; a study may still be running."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ebft.config.evaluation import HARMLESS
from ebft.errors import ConfigError
from ebft.evaluate.differences import by_problem
from ebft.evaluate.tables import is_scored
from ebft.method.measures import SumsAndCounts, sums_by_metric
from ebft.runtime.files import read_json, read_jsonl
from ebft.studies import jobs
from ebft.studies.runs import METRICS_FILE, Run, compares, read_run, settings_that_differ, what_differs
from ebft.studies.statistics import Corpus, Measured, measured

VALIDATION = "validation"  # begins the names of metrics where nothing was tested
_LONGEST_ERROR = 160  # characters, in notes and tables; all of it is in the log


@dataclass(frozen=True)
class Score:
    """A metric of one model."""

    value: float
    error: float | None = None  # standard error, where no items are known
    by_item: Measured | Corpus | None = None
    items: tuple[Any, ...] = ()  # what the items are: only the same ones are compared


@dataclass
class Model:
    """One final model of a row."""

    seed: int | None  # None: nothing was trained
    run: Run | None = None
    problem: str | None = None  # why there is no final model, or no evaluation of it
    evaluation: Path | None = None
    results: dict[str, Any] = field(default_factory=dict)  # of the evaluation, by task
    scores: dict[str, Score] = field(default_factory=dict)


@dataclass
class ReportRow:
    name: str
    title: str
    kind: str  # ebft, sft, rlvr, or base
    method: str
    values: dict[str, Any]  # of its grid
    models: list[Model]
    after: str | None = None  # the method whose final models it started from

    def scores(self, metric: str) -> list[Score]:
        return [model.scores[metric] for model in self.models if metric in model.scores]


@dataclass
class Evidence:
    name: str
    folder: Path
    rows: list[ReportRow]
    manifest: dict[str, Any]
    notes: list[str] = field(default_factory=list)

    @property
    def models(self) -> list[Model]:
        return [model for row in self.rows for model in row.models]

    @property
    def metrics(self) -> list[str]:
        return list(dict.fromkeys(metric for model in self.models for metric in model.scores))


def read_study_folder(folder: Path) -> Evidence:
    manifest = read_json(folder / "study.json")
    if not isinstance(manifest, dict) or "rows" not in manifest:
        raise ConfigError(f"{folder} holds no study.json of a study; give the output folder of `ebft study run`")
    evidence = Evidence(str(manifest["study"]), folder, [], manifest)
    for given in manifest["rows"]:
        models = [_model(folder, one) for one in given["models"]]
        waits = [Model(None, problem="waits for a search to choose its settings")]
        fields = {name: given[name] for name in ("name", "title", "kind", "method", "values")}
        evidence.rows.append(ReportRow(**fields, models=models or waits, after=given.get("after")))
    if any(model.results for model in evidence.models):
        for model in evidence.models:
            model.scores = {name: one for name, one in model.scores.items() if not name.startswith(f"{VALIDATION} ")}
    evidence.notes += _tasks_of_some(evidence)
    _drop_what_was_measured_otherwise(evidence)
    _drop_validation_that_does_not_compare(evidence)
    for row in evidence.rows:
        for model in (model for model in row.models if model.problem):
            seed = "" if model.seed is None else f", seed {model.seed}"
            evidence.notes.append(f"{row.title}{seed}: {model.problem}")
    evidence.notes += _validated_differently(evidence)
    return evidence


def _model(folder: Path, given: dict[str, Any]) -> Model:
    model = Model(given["seed"])
    if given["run"] is not None:
        model.problem = _read_run(model, folder / given["run"], _error(folder / given["log"]))
        if model.run is None or not model.run.finished:
            return model
    if given["evaluation"] is not None:
        error = _error(folder / given["evaluation_log"])
        model.problem = _read_evaluation(model, folder / given["evaluation"], error) or model.problem
    if not model.results and model.run is not None:  # what validation says, for a study that tests nothing
        found = scores_of_records(model.run.records, model.seed)
        model.scores |= {f"{VALIDATION} {name}": score for name, score in found.items()}
    if model.run is not None and (logged := model.run.rewards()):  # of the last tenth of its steps
        last = [one.value for one in logged if one.step > 0.9 * logged[-1].step] or [logged[-1].value]
        model.scores["reward"] = Score(sum(last) / len(last))
    return model


def _error(log: Path) -> str | None:
    error = jobs.last_error(log)
    return error and textwrap.shorten(error, _LONGEST_ERROR, placeholder=" ...")


def _read_run(model: Model, place: Path, error: str | None) -> str | None:
    """What is wrong with it."""
    if not place.is_dir():
        return f"failed: {error}" if error else "has not started"
    if not error and not (place / METRICS_FILE).exists():
        return "has started, nothing is logged yet"
    try:
        model.run = read_run(place)
    except ConfigError as broken:
        return f"failed: {error}" if error else f"broken: {broken}"
    if not model.run.finished:
        steps = model.run.total_costs().get("step", 0)
        return f"failed after {steps:,} steps: {error}" if error else f"not finished: {steps:,} steps"
    return f"broken: {'; '.join(model.run.problems)}" if model.run.problems else None


def _read_evaluation(model: Model, folder: Path, error: str | None) -> str | None:
    """What is wrong with it."""
    found = read_json(folder / "results.json")
    tasks = found.get("tasks") if isinstance(found, dict) else None
    if not isinstance(tasks, dict):
        there = (folder / "results.json").exists()
        broken = "its evaluation is broken" if there else "not evaluated yet"
        return f"its evaluation failed: {error}" if error else broken
    model.evaluation, model.results = folder, tasks
    problem = error and f"its evaluation failed, and the numbers are of one before: {error}"
    for task, entry in tasks.items():
        try:
            model.scores |= _scores_of_task(task, entry, folder, model.seed)
        except (KeyError, TypeError, ValueError) as broken:
            problem = f"its evaluation of {task} is broken: {type(broken).__name__} {broken}"
    return problem


def _scores_of_task(task: str, entry: dict[str, Any], folder: Path, seed: int | None) -> dict[str, Score]:
    entries = {name: one for name, one in (entry["metrics"] | entry.get("rollouts", {})).items()}
    values = {
        n: Score(float(e["value"]), e.get("standard_error")) for n, e in entries.items() if e["value"] is not None
    }
    if task == "calibration":
        records = [r for r in read_jsonl(folder / "calibration.jsonl") if r["sequence"] < entry["sequences"]]
        if len(records) < entry["sequences"]:
            raise ValueError(
                f"calibration.jsonl holds {len(records)} of {entry['sequences']} sequences; it was cut off"
            )
        found = scores_of_records(records, seed)
        values |= {name: score for name, score in found.items() if name in values or "cfm_at_" in name}
    for metric in entry["metrics"] if task != "calibration" else ():
        if greedy := re.fullmatch(r"greedy_(.+)", metric) if task == "translation" else None:
            rows = read_jsonl(folder / f"{task}.greedy.scores.jsonl")
            items = tuple(row["task_id"] for row in rows)
            if greedy[1] in ("bleu", "chrf") and rows:
                statistics = np.array([row[f"{greedy[1]}_statistics"] for row in rows])
                corpus = Corpus("bleu" if greedy[1] == "bleu" else "chrf", statistics, seed)
                values[metric] = Score(values[metric].value, by_item=corpus, items=items)
            elif rows and greedy[1] in rows[0]:
                values[metric] = _mean([row[greedy[1]] for row in rows], items, seed)
        elif of_problems := _of_problems(entry, metric, folder):
            values[metric] = _mean(list(of_problems.values()), tuple(of_problems), seed)
    return {f"{task} {name}": score for name, score in values.items()}


def _mean(values: Sequence[float], items: tuple[Any, ...], seed: int | None) -> Score:
    found = measured(SumsAndCounts(values, [1] * len(values)), seed)
    return Score(found.value, by_item=found, items=items)


def _of_problems(entry: dict[str, Any], metric: str, folder: Path) -> dict[Any, float]:
    """A value for each problem, where the metric is their mean. Over several sets of problems it is the plain mean of
    theirs: each weighs the same, however many problems it has."""
    parts = [part for part in entry.get("parts", [entry]) if not part.get("skipped")]
    rates = {part["name"]: by_problem(folder, part, metric) for part in parts}
    total = sum(map(len, rates.values()))
    weights = {name: total / (len(parts) * len(of_set)) for name, of_set in rates.items() if of_set}
    return {(name, key): rate * weights[name] for name, of_set in rates.items() for key, rate in of_set.items()}


def scores_of_records(records: list[dict[str, Any]], seed: int | None) -> dict[str, Score]:
    """Of every metric of validation or calibration, by sequence. `reward` is not one of them: it repeats the proxy."""
    items, found = tuple((record["sequence"], record["tokens"]) for record in records), {}
    for name, sums in sums_by_metric(records).items():
        if name != "reward" and not any(map(math.isnan, sums.sums)):
            one = measured(sums, seed)
            found[name] = Score(one.value, by_item=one, items=items)
    return found


def _tasks_of_some(evidence: Evidence) -> list[str]:
    """Which tasks were measured on some of the models only: a row's number of seeds is not that of such a column."""
    notes = []
    evaluated = {row.title: found for row in evidence.rows if (found := [m for m in row.models if m.results])}
    for task in dict.fromkeys(task for models in evaluated.values() for model in models for task in model.results):
        entries = {title: [model.results.get(task) for model in models] for title, models in evaluated.items()}
        have = {title: sum(one is not None and is_scored(one) for one in found) for title, found in entries.items()}
        lacking = [f"{n} of {len(entries[title])} of {title}" for title, n in have.items() if n < len(entries[title])]
        if lacking and any(have.values()):
            notes.append(f"{task} was measured on some of the final models only: {', '.join(lacking)}")
        if not all(is_scored(one or {}) for found in entries.values() for one in found):
            notes.append(f"{task} is not all scored yet: run `ebft score {evidence.folder}`, where there is a sandbox")
    return notes


def _drop_what_was_measured_otherwise(evidence: Evidence) -> None:
    """Numbers of a task are put together only if it was measured on the same data in the same way."""
    first: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for row in evidence.rows:
        for model in row.models:
            for task, entry in list(model.results.items()):
                how = how_measured(entry)
                name, theirs = first.setdefault(task, (row.title, how))
                if differ := sorted(key for key in {*how, *theirs} if how.get(key) != theirs.get(key)):
                    shown = ", ".join(f"{key} {_short(how.get(key))} and {_short(theirs.get(key))}" for key in differ)
                    evidence.notes.append(
                        f"{row.title} and {name} were measured differently by {task} ({shown}), so {row.title} has no "
                        "numbers of it here; the same `ebft study run` measures again what is old"
                    )
                    model.scores = {k: v for k, v in model.scores.items() if not k.startswith(f"{task} ")}
                    del model.results[task]


def how_measured(entry: Mapping[str, Any]) -> dict[str, Any]:
    """What the numbers of a task depend on, beside the model."""
    found = {name: value for name, value in entry.get("settings", {}).items() if name not in HARMLESS}
    features = entry.get("features", {})
    found |= {f"features {name}": features[name] for name in ("weights", "taps", "pooling", "normalize") if features}
    return found | ({"text": entry["text"]} if "text" in entry else {})


def _short(value: Any) -> str:
    return textwrap.shorten(str(value), 40, placeholder="...") or "nothing"


def reference_run(runs: Sequence[Run]) -> Run | None:
    """The run that most others were validated like."""
    known = [run for run in runs if run.validation is not None]
    alike = [sum(not validated_apart(run, other) for other in known) for run in known]
    return known[alike.index(max(alike))] if known else None


def validated_apart(run: Run, reference: Run | None) -> list[str]:
    """In what the validation of a run differs from that of another; nothing if it does not."""
    same = reference is None or run is reference
    return [] if same else settings_that_differ(run.validation, reference.validation if reference else None)


def _drop_validation_that_does_not_compare(evidence: Evidence) -> None:
    """Where nothing was tested, of the numbers of validation only those that compare are put together."""
    runs = [model.run for model in evidence.models if model.run is not None]
    reference = reference_run(runs)
    for model in (model for model in evidence.models if model.run is not None):
        differ = validated_apart(model.run, reference) if model.run else []
        apart = [m for m in model.scores if m.startswith(f"{VALIDATION} ") and not compares(m.split()[1], differ)]
        model.scores = {name: score for name, score in model.scores.items() if name not in apart}


def _validated_differently(evidence: Evidence) -> list[str]:
    runs = {row.title: row.models[0].run for row in evidence.rows if row.models[0].run is not None}
    reference = reference_run([run for run in runs.values() if run])
    name = next((title for title, run in runs.items() if run is reference), "")
    alike: dict[str, list[str]] = {}  # by what is said of them, with a name to put in: one note for all
    for title, run in runs.items():
        if run is not None and reference is not None and validated_apart(run, reference):
            for said in what_differs("{}", run.validation, name, reference.validation):
                alike.setdefault(said, []).append(title)
    return [f"Validation, in the curves: {note.replace('{}', ', '.join(rows), 1)}" for note, rows in alike.items()]
