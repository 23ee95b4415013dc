"""Scoring programs: from completions to outcomes to pass@k, for `ebft score` and `ebft eval` alike.

pass@k is the chance that at least one of k samples passes. With c of n samples passing, the share of the subsets of
size k that hold a passing one is 1 - C(n-c, k) / C(n, k), its unbiased estimate (Chen et al. 2021).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import Any

from ebft.config.evaluation import EvalOptions
from ebft.config.settings import Values
from ebft.errors import ConfigError
from ebft.problems.answers import has_code
from ebft.problems.problem import Attempt, Problem, run_many
from ebft.runtime.files import json_ready, read_json, read_jsonl, write_json, write_jsonl
from ebft.runtime.machine import available_cores
from ebft.runtime.messages import progress
from ebft.sandbox.box import Sandbox
from ebft.sandbox.other_languages import LANGUAGES, NOT_COMPILED
from ebft.sandbox.python_tests import ERROR, STATUSES
from ebft.version import __version__

K = (1, 4, 16)
HARNESS = 7  # one more whenever answers are read or run in another way, so that outcomes of before are not kept
CUT_OFF = ("length", "context")  # of how a completion ended: there was no room for more
KINDS = ("empty", "cut", "no_code")  # of answers that are none, each counted once, the first that it is

Results = dict[str, Any]  # as JSON has them: of a model, or of a task: {"metrics": {name: Metric}, and details}
Row = Results  # of a completion: task_id, sample (its number), completion, finish (how it ended, if known)
Metric = Results  # value, standard_error, count
Metrics = dict[str, Metric]


def score_programs(
    problems: Mapping[str, Problem],
    rows: Sequence[Row],
    sandbox: Sandbox,
    file: Path,
    ks: Sequence[int] = K,
    workers: int | None = None,
) -> Results:
    """Runs answers to problems in one language; pass@k over those that have some. The file has an outcome a row."""
    language, workers = next(iter(problems.values())).language, workers or available_cores()
    outcomes = _outcomes(problems, rows, sandbox, workers, file)
    passed: dict[str, list[bool]] = defaultdict(list)
    for outcome in outcomes:
        passed[outcome["task_id"]].append(outcome["passed"])
    metrics = pass_at_ks([(len(of), sum(of)) for of in passed.values()], ks)
    statuses = Counter(outcome["status"] for outcome in outcomes)
    without = len(problems) - len(passed)
    broken = len(outcomes) > 1 and all(outcome["message"].startswith(NOT_COMPILED) for outcome in outcomes)
    notes = {
        f"{without} of {len(problems)} problems have no sample and are not counted": without,
        f"{statuses[ERROR]} samples ended in an error of the harness and count as not passed": statuses[ERROR],
        f"no answer in {language} compiles: its toolchain may be broken ({_toolchain(language)})": broken,
    }
    return {
        **{name: found["value"] for name, found in metrics.items()},  # short, as other tools print them
        "metrics": metrics,
        "counts": {"problems": len(problems), "problems_scored": len(passed), "samples": len(rows)},
        "statuses": {status: statuses[status] for status in STATUSES},
        "notes": [note for note, applies in notes.items() if applies],
        "settings": {"k": list(ks), "unsafe_exec": sandbox.unsafe, "workers": workers, **asdict(sandbox.limits)},
        "versions": {
            "ebft": __version__,
            "harness": HARNESS,
            "platform": platform.platform(),
            "sandbox": "none" if sandbox.unsafe else "bubblewrap",
            **_toolchain(language),
        },
    }


def outcomes_file(completions: Path) -> Path:
    """Where `ebft eval` keeps what became of the programs in a file of completions."""
    return completions.with_suffix(".scores.samples.jsonl")


def _outcomes(
    problems: Mapping[str, Problem], rows: Sequence[Row], sandbox: Sandbox, workers: int, file: Path
) -> list[Row]:
    """The outcome of each row, in their order. Those of an earlier run are kept where problem, completion, limits,
    toolchain and our own reading of answers are the same, and equal answers to a problem are run once."""
    limits, keys, todo = sandbox.limits, list[str](), dict[str, Attempt]()
    for row in rows:
        problem = problems[row["task_id"]]
        made = [repr(problem), row["completion"], asdict(limits), sandbox.unsafe, _toolchain(problem.language), HARNESS]
        keys.append(hashlib.sha256(json.dumps(made, sort_keys=True).encode("ascii")).hexdigest()[:32])
        todo[keys[-1]] = Attempt(problem, row["completion"], keys[-1])
    found = {one["key"]: one for one in read_jsonl(file) if one["status"] != ERROR and one["key"] in todo}
    write_jsonl(file, found.values())
    todo = {key: attempt for key, attempt in todo.items() if key not in found}
    with progress("programs", len(todo)) as advance, file.open("a", encoding="utf-8") as appended:
        for attempt, outcome in run_many(todo.values(), sandbox, limits, workers):
            found[attempt.tag] = {"key": attempt.tag, **asdict(outcome), "passed": outcome.passed}
            appended.write(json.dumps(found[attempt.tag]) + "\n")
            appended.flush()
            advance(1)
    language = next(iter(problems.values())).language
    about = [{"task_id": row["task_id"], "language": language, "sample": row["sample"]} for row in rows]
    complete = [found[key] | of_row for key, of_row in zip(keys, about, strict=True)]
    write_jsonl(file, complete)
    return complete


def _toolchain(language: str) -> dict[str, str]:
    return {"python": platform.python_version()} if language == "python" else LANGUAGES[language].versions()


# ---- records on disk -------------------------------------------------------------------------------------------------


class ResumableRecords:
    """An append-only JSONL file `<name>.jsonl`, made under the settings in `<name>.settings.json`. Resuming with other
    ones is an error, because it would hold two things under one name. Studies replace such records instead."""

    def __init__(self, folder: Path, name: str, settings: Values, options: EvalOptions) -> None:
        self.file, settings_file = folder / f"{name}.jsonl", folder / f"{name}.settings.json"
        settings, before = json_ready(settings), read_json(settings_file) or {}
        folder.mkdir(parents=True, exist_ok=True)
        if options.overwrite or (options.replace_changed and before != settings):
            self.file.unlink(missing_ok=True)
        if self.file.exists() and before != settings:
            differ = [key for key in {**before, **settings} if before.get(key) != settings.get(key)]
            ways_out = "resume with the same settings, choose another --output, or use --overwrite to make it again"
            raise ConfigError(f"{self.file} was made with another {', '.join(differ)}; {ways_out}")
        write_json(settings_file, settings)
        self.rows = read_jsonl(self.file)
        if self.file.exists():  # without the line that a killed run was writing
            os.truncate(self.file, self.file.read_bytes().rfind(b"\n") + 1)

    def append(self, rows: Sequence[Row]) -> None:
        with self.file.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        self.rows += rows


# ---- numbers ---------------------------------------------------------------------------------------------------------


def pass_at_k(samples: int, passed: int, k: int) -> Fraction:
    """The estimate for one problem with `passed` of `samples` samples passing, of which there are at least k."""
    return 1 - Fraction(math.comb(samples - passed, k), math.comb(samples, k))


def pass_at_ks(counts: Sequence[tuple[int, int]], ks: Sequence[int]) -> Metrics:
    """Means over problems of (samples, passed), for each k of which all have enough samples."""
    fewest = min((samples for samples, _ in counts), default=0)
    return {f"pass@{k}": mean_of([pass_at_k(*count, k) for count in counts]) for k in ks if k <= fewest}


def mean_of(values: Sequence[float | Fraction]) -> Metric:
    """With its standard error over problems or sentences, which a single one does not have."""
    exact = [Fraction(value) for value in values]
    error = math.sqrt(statistics.variance(exact) / len(exact)) if len(exact) > 1 else None
    return {"value": float(statistics.mean(exact)), "standard_error": error, "count": len(exact)}


def over_sets(parts: Sequence[Results]) -> Metrics:
    """Of independent sets of problems, such as languages: the plain mean over those that have a metric, and each under
    its own name."""
    found: Metrics = {}
    for metric in dict.fromkeys(metric for part in parts for metric in part["metrics"]):
        entries = [part["metrics"][metric] for part in parts if metric in part["metrics"]]
        errors = [entry["standard_error"] for entry in entries]
        found[metric] = {
            "value": statistics.fmean(entry["value"] for entry in entries),
            "standard_error": None if None in errors else math.hypot(*errors) / len(entries),
            "count": sum(entry["count"] for entry in entries),
        }
    return found | {f"{part['name']} {name}": entry for part in parts for name, entry in part["metrics"].items()}


def kinds_by_problem(rows: Iterable[Row], language: str | None) -> dict[str, dict[str, Fraction]]:
    """Of each kind, its share of the answers to each problem."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        is_code = language is None or has_code(row["completion"], language)
        kind = "empty" if not row["completion"].strip() else "cut" if row["finish"] in CUT_OFF else "no_code"
        kinds[row["task_id"]].append("" if kind == "no_code" and is_code else kind)
    of_these = KINDS if language else KINDS[:2]
    return {kind: {task_id: Fraction(of.count(kind), len(of)) for task_id, of in kinds.items()} for kind in of_these}


def shares_of_kinds(rows: Iterable[Row], language: str | None) -> Metrics:
    return {kind: mean_of([*shares.values()]) for kind, shares in kinds_by_problem(rows, language).items()}
