"""What a study's folder holds: for every row of its tables the runs, what tests of their final models found, and what
is missing or broken. Only files are read; a study may still be running."""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ebft.config.evaluation import HARMLESS
from ebft.errors import ConfigError
from ebft.evaluate.differences import pass_rates
from ebft.evaluate.tables import is_scored
from ebft.method.measures import SumsAndCounts, sums_by_metric
from ebft.runtime.files import read_json, read_jsonl
from ebft.studies import jobs
from ebft.studies.runs import METRICS_FILE, Run, compares, read_run, settings_that_differ
from ebft.studies.statistics import Corpus, CorpusMetric, Measured, measured

TEST, VALIDATION = "test", "validation"
_LONGEST_ERROR = 160  # characters, in notes and tables


@dataclass(frozen=True)
class Score:
    """A metric of one model."""

    value: float
    error: float | None  # standard error, where no items are known
    measured: Measured | None  # by item; None for scores of a corpus as a whole
    items: tuple[Any, ...] = ()  # what the items are: only the same ones are compared
    corpus: Corpus | None = None  # what the sentences add to the score of a corpus, where it is known


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
    values: dict[str, Any] = field(default_factory=dict)  # of its grid
    method: str = ""
    models: list[Model] = field(default_factory=list)
    chosen: dict[str, Any] = field(default_factory=dict)
    after: str | None = None  # the method whose final models it started from

    def scores(self, metric: str) -> list[Score]:
        return [model.scores[metric] for model in self.models if metric in model.scores]


@dataclass
class Evidence:
    name: str
    rows: list[ReportRow]
    notes: list[str] = field(default_factory=list)
    manifest: dict[str, Any] = field(default_factory=dict)

    @property
    def metrics(self) -> list[str]:
        return list(dict.fromkeys(metric for row in self.rows for model in row.models for metric in model.scores))


def read_study_folder(folder: Path) -> Evidence:
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder; give the output folder of `ebft study run`")
    manifest = read_json(folder / "study.json")
    if not isinstance(manifest, dict) or "rows" not in manifest:
        broken = "is not valid JSON" if (folder / "study.json").exists() and manifest is None else "holds no study"
        raise ConfigError(f"{folder / 'study.json'} {broken}; give the output folder of `ebft study run`")
    evidence = Evidence(str(manifest["study"]), [], manifest=manifest)
    for row in manifest["rows"]:
        fields = {name: row[name] for name in ("name", "title", "kind", "values", "method", "chosen")}
        models = [_model(folder, one) for one in row["models"]]
        if not models:
            models = [Model(None, problem="waits for a search to choose its settings")]
        evidence.rows.append(ReportRow(**fields, models=models, after=row.get("after")))
    tested = any(model.results for row in evidence.rows for model in row.models)
    for model in (model for row in evidence.rows for model in row.models if tested):
        model.scores = {name: one for name, one in model.scores.items() if not name.startswith(f"{VALIDATION} ")}
    evidence.notes += _tasks_of_some(evidence, folder)
    _drop_what_was_measured_otherwise(evidence)
    _drop_validation_that_does_not_compare(evidence)
    for row in evidence.rows:
        for model in row.models:
            if model.problem:
                seed = "" if model.seed is None else f", seed {model.seed}"
                evidence.notes.append(f"{row.title}{seed}: {model.problem}")
    return evidence


def _tasks_of_some(evidence: Evidence, folder: Path) -> list[str]:
    """Which tasks were measured on some of the models only: a row's number of seeds is not that of such a column."""
    notes = []
    evaluated = {row.title: [model for model in row.models if model.results] for row in evidence.rows}
    for task in dict.fromkeys(task for models in evaluated.values() for model in models for task in model.results):
        have = {title: sum(_has(model, task) for model in models) for title, models in evaluated.items() if models}
        lacking = {title: count for title, count in have.items() if count < len(evaluated[title])}
        if lacking and any(have.values()):
            counts = ", ".join(f"{count} of {len(evaluated[title])} of {title}" for title, count in lacking.items())
            notes.append(f"{task} was measured on some of the final models only: {counts}")
        entries = [model.results.get(task, {}) for models in evaluated.values() for model in models]
        if not all(is_scored(entry) for entry in entries):
            notes.append(f"{task} is not all scored yet: run `ebft score {folder}`, where there is a sandbox")
    return notes


def _has(model: Model, task: str) -> bool:
    return task in model.results and is_scored(model.results[task])


def _model(folder: Path, given: dict[str, Any]) -> Model:
    model = Model(given["seed"])
    if given["run"] is not None:
        place = folder / given["run"]
        error = _last_error(folder / given["log"])
        if not place.is_dir():
            model.problem = f"failed: {error}" if error else "has not started"
            return model
        if not error and not (place / METRICS_FILE).exists():
            model.problem = "has started, nothing is logged yet"
            return model
        try:
            model.run = read_run(place)
        except ConfigError as broken:
            model.problem = f"failed: {error}" if error else f"broken: {broken}"
            return model
        if not model.run.finished:
            steps = model.run.total_costs().get("step", 0)
            model.problem = f"failed after {steps:,} steps: {error}" if error else f"not finished: {steps:,} steps"
            return model
        for trouble in model.run.problems:
            model.problem = f"broken: {trouble}"
    if given["evaluation"] is not None:
        _read_evaluation(model, folder / given["evaluation"], folder / given["evaluation_log"])
    if not model.results and model.run is not None:  # what validation says, for a study that tests nothing
        found = {
            f"{VALIDATION} {name}": score for name, score in scores_of_records(model.run.records, model.seed).items()
        }
        model.scores |= found
    if (reward := training_reward(model.run)) is not None:
        model.scores["reward"] = Score(reward, None, None)
    return model


def _last_error(log: Path) -> str | None:
    """Short enough for a table; all of it is in the log."""
    error = jobs.last_error(log)
    return error and textwrap.shorten(error, _LONGEST_ERROR, placeholder=" ...")


def _read_evaluation(model: Model, folder: Path, log: Path) -> None:
    found = read_json(folder / "results.json")
    tasks = found.get("tasks") if isinstance(found, dict) else None
    if not isinstance(tasks, dict):
        error = _last_error(log)
        exists = (folder / "results.json").exists()
        model.problem = (
            f"its evaluation failed: {error}"
            if error
            else "its evaluation is broken"
            if exists
            else "not evaluated yet"
        )
        return
    model.evaluation, model.results = folder, tasks
    if error := _last_error(log):
        model.problem = f"its evaluation failed, and the numbers are of one before: {error}"
    for task, entry in tasks.items():
        try:
            model.scores |= _scores_of_task(task, entry, folder, model.seed)
        except (json.JSONDecodeError, KeyError, TypeError, ValueError) as broken:
            model.problem = f"its evaluation of {task} is broken: {type(broken).__name__} {broken}"


def _scores_of_task(task: str, entry: dict[str, Any], folder: Path, seed: int | None) -> dict[str, Score]:
    entries = entry["metrics"] | entry.get("rollouts", {})
    values = {f"{task} {name}": _plain(one) for name, one in entries.items() if one["value"] is not None}
    if task == "calibration":
        records = [r for r in read_jsonl(folder / "calibration.jsonl") if r["sequence"] < entry["sequences"]]
        if len(records) < entry["sequences"]:
            raise ValueError(
                f"calibration.jsonl holds {len(records)} of {entry['sequences']} sequences; it was cut off"
            )
        found = {f"{task} {name}": score for name, score in scores_of_records(records, seed).items()}
        return {**values, **{name: score for name, score in found.items() if name in values or "cfm_at_" in name}}
    for metric in entry["metrics"]:
        if (by_item := _by_item(task, entry, metric, folder)) is not None:
            sums = SumsAndCounts(list(by_item.values()), [1] * len(by_item))
            found_one = measured(sums, seed)
            values[f"{task} {metric}"] = Score(found_one.value, None, found_one, tuple(by_item))
        elif (corpus := _corpus(task, metric, folder, seed)) is not None:
            name, items = f"{task} {metric}", corpus[1]
            values[name] = replace(values[name], corpus=corpus[0], items=items)
    return values


def _corpus(task: str, metric: str, folder: Path, seed: int | None) -> tuple[Corpus, tuple[Any, ...]] | None:
    """What sentences add to a corpus score, and the sentences; None where it is no such score, or of old versions."""
    greedy = re.fullmatch(r"greedy_(bleu|chrf)", metric)
    rows = read_jsonl(folder / f"{task}.greedy.scores.jsonl") if greedy else []
    if not greedy or not rows or not all(f"{greedy[1]}_statistics" in row for row in rows):
        return None
    name: CorpusMetric = "bleu" if greedy[1] == "bleu" else "chrf"
    statistics = np.array([row[f"{name}_statistics"] for row in rows])
    return Corpus(name, statistics, seed), tuple(row["task_id"] for row in rows)


def _plain(entry: dict[str, Any]) -> Score:
    return Score(float(entry["value"]), entry.get("standard_error"), None)


def scores_of_records(records: list[dict[str, Any]], seed: int | None) -> dict[str, Score]:
    """Of every metric of validation or calibration, by sequence. `reward` is not one of them: it repeats the proxy."""
    items = tuple((record["sequence"], record["tokens"]) for record in records)
    found = {}
    for name, sums in sums_by_metric(records).items():
        if name != "reward" and not any(math.isnan(s) for s in sums.sums):
            one = measured(sums, seed)
            found[name] = Score(one.value, None, one, items)
    return found


def _by_item(task: str, entry: dict[str, Any], metric: str, folder: Path) -> dict[Any, float] | None:
    """A value for each problem or sentence, where the metric is their mean; None where it is not."""
    if passes := re.fullmatch(r"(greedy_)?pass@(\d+)", metric):
        decoding, k = "greedy" if passes[1] else "samples", int(passes[2])
        parts = [part for part in entry.get("parts", [entry]) if not part.get("skipped")]
        rates = {part["name"]: pass_rates(folder, f"{part['name']}.{decoding}", k) for part in parts}
        total = sum(map(len, rates.values()))
        # The plain mean over sets of problems: each weighs the same, however many problems it has.
        return {
            (name, key): rate * total / (len(parts) * len(of_set))
            for name, of_set in rates.items()
            for key, rate in of_set.items()
        } or None
    if greedy := re.fullmatch(r"greedy_(sentence_bleu|sentence_chrf|comet)", metric):
        rows = read_jsonl(folder / f"{task}.greedy.scores.jsonl")
        return {row["task_id"]: row[greedy[1]] for row in rows} or None
    return None


def training_reward(run: Run | None) -> float | None:
    """RLVR's own reward: the mean of what it logged in the last tenth of its steps."""
    if run is None or run.method != "rlvr":
        return None
    logged = [(e["step"], e["reward"]) for e in run.entries if isinstance(e.get("reward"), int | float)]
    if not logged:
        return None
    last = logged[-1][0]
    recent = [value for step, value in logged if step > 0.9 * last] or [logged[-1][1]]
    return sum(recent) / len(recent)


def _drop_what_was_measured_otherwise(evidence: Evidence) -> None:
    """Numbers of a task are put together only if it was measured on the same data in the same way."""
    first: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for row in evidence.rows:
        for model in row.models:
            for task, entry in list(model.results.items()):
                how = how_measured(entry)
                name, theirs = first.setdefault(task, (row.title, how))
                differs = sorted(key for key in {*how, *theirs} if how.get(key) != theirs.get(key))
                if differs:
                    shown = ", ".join(f"{key} {_short(how.get(key))} and {_short(theirs.get(key))}" for key in differs)
                    evidence.notes.append(
                        f"{row.title} and {name} were measured differently by {task} ({shown}), so {row.title} has no "
                        f"numbers of it here; the same `ebft study run` measures again what is old"
                    )
                    model.scores = {k: v for k, v in model.scores.items() if not k.startswith(f"{task} ")}
                    del model.results[task]


def reference_run(runs: Sequence[Run]) -> Run | None:
    """The run that most others were validated like."""
    known = [run for run in runs if run.validation is not None]
    alike = [sum(not validated_apart(run, other) for other in known) for run in known]
    return known[alike.index(max(alike))] if known else None


def validated_apart(run: Run, reference: Run | None) -> list[str]:
    """In what the validation of a run differs from that of another; nothing if it does not."""
    if reference is None or run is reference:
        return []
    return settings_that_differ(run.validation, reference.validation)


def _drop_validation_that_does_not_compare(evidence: Evidence) -> None:
    """Where nothing was tested, of the numbers of validation only those that compare are put together."""
    models = [model for row in evidence.rows for model in row.models if model.run is not None]
    reference = reference_run([model.run for model in models if model.run is not None])
    for model in models:
        assert model.run is not None
        differ = validated_apart(model.run, reference)
        model.scores = {
            name: score
            for name, score in model.scores.items()
            if not name.startswith(f"{VALIDATION} ") or compares(name.removeprefix(f"{VALIDATION} "), differ)
        }


def how_measured(entry: Mapping[str, Any]) -> dict[str, Any]:
    """What the numbers of a task depend on, beside the model."""
    found = {name: value for name, value in entry.get("settings", {}).items() if name not in HARMLESS}
    if "text" in entry:
        found["text"] = entry["text"]
    for name in ("weights", "taps", "pooling", "normalize"):
        if "features" in entry:
            found[f"features {name}"] = entry["features"].get(name)
    return found


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
