"""What a study's folder holds: for every row of its tables the runs, what tests of their final models found, and what
is missing or broken. Only files are read; a study may still be running."""

from __future__ import annotations

import math
import textwrap
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from ebft.config.evaluation import HARMLESS
from ebft.errors import ConfigError
from ebft.evaluate.tables import by_problem, is_scored
from ebft.method.measures import SumsAndCounts, sums_by_metric
from ebft.runtime.files import Json, read_json, read_jsonl
from ebft.studies.runs import METRICS_FILE, Run, compares, read_run, validated_apart, what_differs
from ebft.studies.statistics import Corpus, CorpusMetric, Measured, measured
from ebft.studies.study import last_error

Scores = dict[str, Measured | Corpus]  # by `<task> <metric>`
VALIDATION = "validation"  # begins the names of metrics where nothing was tested


@dataclass
class Model:
    """One final model of a row."""

    seed: int | None = None  # None: nothing was trained
    run: Run | None = None
    problems: list[str] = field(default_factory=list)  # what is missing, broken, or does not compare
    evaluation: Path | None = None
    results: Json = field(default_factory=dict)  # of the evaluation, by task
    scores: Scores = field(default_factory=dict)

    @property
    def state(self) -> str:
        return "finished" if self.run is not None and self.run.finished else "; ".join(self.problems)

    def drop(self, task: str) -> None:
        self.scores = {name: score for name, score in self.scores.items() if not name.startswith(f"{task} ")}


@dataclass
class Row:
    title: str
    kind: str  # ebft, sft, rlvr, or base
    models: list[Model]
    method: str = ""
    values: Json = field(default_factory=dict)  # of its grid
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
        if any(model.results for model in self.models):
            for model in self.models:
                model.drop(VALIDATION)
        self._drop_what_was_tested_otherwise()
        known = [model.run for model in self.models if model.run is not None and model.run.validation is not None]
        # The run that most others were validated like.
        alike = [sum(not validated_apart(run, other) for other in known) for run in known]
        self.reference = known[alike.index(max(alike))] if known else None
        for model in self.models:
            if model.run is not None and (said := what_differs(model.run, self.reference)) is not None:
                model.problems.append(f"it {said}")
                differ = validated_apart(model.run, self.reference)
                for metric in [m for m in model.scores if m.startswith(f"{VALIDATION} ")]:
                    if not compares(metric.split()[1], differ):
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
                if differ := sorted(key for key in {*how, *theirs} if how.get(key) != theirs.get(key)):
                    told = ", ".join(
                        f"{key} {str(how.get(key))[:40]} and {str(theirs.get(key))[:40]}" for key in differ
                    )
                    what = f"{task} was measured differently than of {of} ({told}) and is left out"
                    model.problems.append(f"{what}; the same `ebft study run` measures again what is old")
                    model.drop(task)
                    del model.results[task]  # nor is it drawn
                elif not is_scored(entry):
                    where = f"run `ebft score {self.folder}`, where there is a sandbox"
                    model.problems.append(f"{task} is not all scored yet: {where}")


def read_study_folder(folder: Path) -> Evidence:
    manifest = read_json(folder / "study.json")
    if not isinstance(manifest, dict) or "rows" not in manifest:
        raise ConfigError(f"{folder} holds no study.json of a study; give the output folder of `ebft study run`")
    rows = []
    for given in manifest["rows"]:
        models = [_read_model(folder, given["title"], one) for one in given["models"]]
        models = models or [Model(problems=["waits for a search to choose its settings"])]
        rows.append(Row(given["title"], given["kind"], models, given["method"], given["values"], given.get("after")))
    return Evidence(folder, manifest, rows)


def _read_model(folder: Path, title: str, given: Json) -> Model:
    model = Model(given["seed"])
    if given["run"] is not None:
        place, error = folder / given["run"], _error(folder / given["log"])
        try:
            model.run = read_run(place)
        except ConfigError as broken:
            there = (place / METRICS_FILE).exists()
            model.problems.append(f"broken: {broken}" if there else f"failed: {error}" if error else "has not started")
            return model
        model.run.name = title
        if not model.run.finished:
            steps = f"{model.run.total_costs().get('step', 0):,} steps"
            model.problems.append(f"failed after {steps}: {error}" if error else f"not finished: {steps}")
            return model
        model.scores = scores_of_run(model.run, model.seed)
    if given["evaluation"] is not None:
        _read_evaluation(model, folder / given["evaluation"], _error(folder / given["evaluation_log"]))
    return model


def _error(log: Path) -> str:
    return textwrap.shorten(last_error(log) or "", 160, placeholder=" ...")  # all of it is in the log


def scores_of_run(run: Run, seed: int | None = None) -> Scores:
    """What is known of a run without an evaluation."""
    found: Scores = {f"{VALIDATION} {name}": score for name, score in _by_sequence(run.records, seed).items()}
    if logged := run.rewards():
        last = [entry["reward"] for entry in logged if entry["step"] > 0.9 * logged[-1]["step"]] or [
            logged[-1]["reward"]
        ]
        found["reward"] = Measured(fmean(last), seed=seed)
    return found


def _read_evaluation(model: Model, folder: Path, error: str) -> None:
    found = read_json(folder / "results.json")
    if not isinstance(found, dict) or not isinstance(found.get("tasks"), dict):
        broken = "is broken" if (folder / "results.json").exists() else "is not there yet"
        model.problems.append(f"its evaluation failed: {error}" if error else f"its evaluation {broken}")
        return
    model.evaluation, model.results = folder, found["tasks"]
    if error:
        model.problems.append(f"its evaluation failed, and the numbers are of one before: {error}")
    for task, entry in model.results.items():
        try:
            scores = _scores_of_task(task, entry, folder, model.seed)
            model.scores |= {f"{task} {name}": score for name, score in scores.items()}
        except (KeyError, TypeError, ValueError) as broken:
            model.problems.append(f"its evaluation of {task} is broken: {type(broken).__name__} {broken}")


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
        if len(records) < entry["sequences"]:
            raise ValueError(f"calibration.jsonl holds {len(records)} of {entry['sequences']} sequences")
        of_items = _by_sequence(records, seed)
        return scores | {name: score for name, score in of_items.items() if name in scores or "cfm_at_" in name}
    if task == "translation":
        rows = read_jsonl(folder / "translation.greedy.scores.jsonl")
        items = tuple(row["task_id"] for row in rows)
        for name in [name for name in scores if name.startswith("greedy_") and rows]:
            score = name.removeprefix("greedy_")
            if score in ("bleu", "chrf"):
                metric: CorpusMetric = "bleu" if score == "bleu" else "chrf"
                scores[name] = Corpus(metric, np.array([row[f"{score}_statistics"] for row in rows]), seed, items)
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
    features = entry.get("features", {})
    found |= {f"features {name}": features[name] for name in ("weights", "taps", "pooling", "normalize") if features}
    return found | ({"text": entry["text"]} if "text" in entry else {})
