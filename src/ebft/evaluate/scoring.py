"""Scoring programs: from samples to outcomes to pass@k, for `ebft score` and `ebft eval` alike.

Outcomes are appended to a file one by one, so that a run that was stopped resumes where it was.

pass@k is the chance that at least one of k samples passes. With c of n samples passing, the share of the subsets of
size k that hold a passing one is 1 - C(n-c, k) / C(n, k), its unbiased estimate (Chen et al. 2021), computed in whole
numbers.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import platform
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from ebft.errors import DataError
from ebft.problems.answers import has_code
from ebft.problems.problem import Attempt, Problem, run_many
from ebft.runtime.files import read_jsonl, write_jsonl
from ebft.runtime.messages import progress
from ebft.sandbox.box import Limits, Sandbox
from ebft.sandbox.bubblewrap import bubblewrap_version
from ebft.sandbox.other_languages import LANGUAGES, NOT_COMPILED
from ebft.sandbox.python_tests import ERROR, PASSED, SKIPPED, STATUSES, Outcome
from ebft.version import __version__

logger = logging.getLogger(__name__)

TIMEOUT, MEMORY_MIB = 10.0, 1024
K = (1, 4, 16)
HARNESS = 7  # one more whenever answers are read or run in another way, so that outcomes of before are not kept
CUT_OFF = ("length", "context")  # of how a completion ended: there was no room for more
KINDS = ("empty", "cut", "no_code")  # of answers that are no whole program, each counted once, the first that it is

Row = dict[str, Any]
Metrics = dict[str, dict[str, Any]]  # {name: {"value", "standard_error", "count"}}


@dataclass(frozen=True)
class Sample:
    problem: Problem
    number: int  # counts the samples of one problem
    completion: str
    finish: str = ""  # how its generation ended, where that is known


def program_limits(timeout: float, memory_mib: int) -> Limits:
    if not 0 < timeout <= 86400:
        raise DataError(f"--timeout {timeout} must be a positive number of seconds")
    return Limits(seconds=timeout, memory_mib=memory_mib)


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def score_samples(
    problems: Sequence[Problem],
    samples: Sequence[Sample],
    sandbox: Sandbox,
    outcomes_file: Path,
    ks: Sequence[int] = K,
    workers: int | None = None,
) -> dict[str, Any]:
    """Run the samples and estimate pass@k over the problems that have some.

    Args:
        problems: all problems; those without samples are named in the results and not counted.
        samples: answers to these problems, in any order.
        sandbox: where programs run, with the limits of each. If it cannot start, nothing runs or is written.
        outcomes_file: JSONL with a line for each sample; outcomes that are there and still valid are kept.
        ks: which pass@k to report, where every problem has enough samples.
        workers: programs at a time; default: the number of cores.
    """
    started = time.monotonic()
    workers = workers or available_cores()
    languages = sorted({problem.language for problem in problems})
    skipped = {p.language: reason for p in problems if (reason := p.unavailable()) is not None}
    if any(sample.problem.language not in skipped for sample in samples):
        sandbox.check()
    rows = _outcomes(samples, skipped, sandbox, workers, outcomes_file)
    counts: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])  # samples, and how many of them pass
    answers: list[tuple[str, str, str, str]] = []
    for sample, row in zip(samples, rows, strict=True):
        if row["status"] != SKIPPED:
            key = (row["language"], row["task_id"])
            counts[key] = [counts[key][0] + 1, counts[key][1] + row["passed"]]
            answers.append((*key, sample.completion, sample.finish))
    metrics = pass_at_ks([*counts.values()], ks)
    statuses = Counter(row["status"] for row in rows)
    attempted = {(row["language"], row["task_id"]) for row in rows}
    without = [p.task_id for p in problems if (p.language, p.task_id) not in attempted]
    notes = [f"{language} is skipped: {reason}" for language, reason in skipped.items()]
    if without:
        notes.append(f"{len(without)} of {len(problems)} problems have no sample and are not counted")
    if missing := [f"pass@{k}" for k in ks if counts and f"pass@{k}" not in metrics]:
        notes.append(f"not reported: {', '.join(missing)}; pass@k needs k samples of every problem")
    if statuses[ERROR]:
        notes.append(f"{statuses[ERROR]} samples ended in an error of the harness and count as not passed")
    for language in languages:
        said = [row["message"] for row in rows if row["language"] == language and row["status"] != SKIPPED]
        if len(said) > 1 and all(message.startswith(NOT_COMPILED) for message in said):
            notes.append(f"no answer in {language} compiles: its toolchain may be broken ({_toolchain(language)})")
    results = {
        **{name: found["value"] for name, found in metrics.items()},  # short, as other tools print them
        "metrics": metrics | shares_of_kinds(answers),
        "counts": {
            "problems": len(problems),
            "problems_scored": len(counts),
            "problems_without_samples": len(without),
            "samples": len(samples),
            "samples_passed": statuses[PASSED],
        },
        "statuses": {status: statuses[status] for status in STATUSES},
        "problems_without_samples": without,
        "skipped_languages": skipped,
        "notes": notes,
        "settings": {
            "k": list(ks),
            "timeout": sandbox.limits.seconds,
            "memory_mib": sandbox.limits.memory_mib,
            "workers": workers,
            "unsafe_exec": sandbox.unsafe,
            "control_groups": sandbox.control_groups,
        },
        "versions": {
            "ebft": __version__,
            "harness": str(HARNESS),
            "platform": platform.platform(),
            "sandbox": "none" if sandbox.unsafe else f"bubblewrap {bubblewrap_version()}",
            **{name: found for language in languages for name, found in _toolchain(language).items()},
        },
        "seconds": round(time.monotonic() - started, 3),
    }
    if len(languages) > 1:
        of_language = {name: [pair for key, pair in counts.items() if key[0] == name] for name in languages}
        results["by_language"] = {name: pass_at_ks(pairs, ks) for name, pairs in of_language.items()}
    return results


def outcomes_file_of(output: Path) -> Path:
    return output.with_name(f"{output.stem}.samples.jsonl")


def _outcomes(
    samples: Sequence[Sample], skipped: Mapping[str, str], sandbox: Sandbox, workers: int, file: Path
) -> list[Row]:
    """The outcome of each sample, in their order. Those of an earlier run are kept where problem, completion, limits,
    toolchain and our own reading of answers are the same."""
    earlier: dict[str, list[Row]] = defaultdict(list)
    for row in read_jsonl(file):
        if row["status"] not in (ERROR, SKIPPED):
            earlier[row["key"]].append(row)
    rows: dict[int, Row] = {}
    todo: list[Attempt] = []
    versions = {language: _toolchain(language) for language in {sample.problem.language for sample in samples}}
    for place, sample in enumerate(samples):
        problem, language = sample.problem, sample.problem.language
        made = [repr(problem), sample.completion, asdict(sandbox.limits), sandbox.unsafe, versions[language], HARNESS]
        key = hashlib.sha256(json.dumps(made, sort_keys=True).encode("ascii")).hexdigest()[:32]
        about = {"task_id": problem.task_id, "language": language, "sample": sample.number, "key": key}
        if language in skipped:
            rows[place] = about | _as_row(Outcome(SKIPPED, skipped[language]))
        elif earlier[key]:
            rows[place] = earlier[key].pop() | about
        else:
            todo.append(Attempt(problem, sample.completion, (place, about)))
    file.parent.mkdir(parents=True, exist_ok=True)
    write_jsonl(file, rows.values())
    if rows and todo:
        logger.info(f"{len(rows)} of {len(samples)} outcomes already exist")
    with progress("programs", len(samples), len(rows)) as advance, file.open("a", encoding="utf-8") as appended:
        for attempt, outcome in run_many(todo, sandbox, sandbox.limits, workers):
            place, about = attempt.tag
            rows[place] = about | _as_row(outcome)
            appended.write(json.dumps(rows[place]) + "\n")
            appended.flush()
            advance(1)
    complete = [rows[place] for place in range(len(samples))]
    write_jsonl(file, complete)
    return complete


def _as_row(outcome: Outcome) -> Row:
    return {"status": outcome.status, "passed": outcome.passed, "message": outcome.message}


def _toolchain(language: str) -> dict[str, str]:
    return {"python": platform.python_version()} if language == "python" else LANGUAGES[language].versions()


def pass_at_k(samples: int, passed: int, k: int) -> Fraction:
    """The estimate for one problem with `passed` of `samples` samples passing; there is none of fewer than k."""
    if not 0 <= passed <= samples or not 1 <= k <= samples:
        raise ValueError(f"there is no pass@{k} of {samples} samples of which {passed} pass")
    return 1 - Fraction(math.comb(samples - passed, k), math.comb(samples, k))


def pass_at_ks(counts: Sequence[Sequence[int]], ks: Sequence[int]) -> Metrics:
    """Means over problems of (samples, passed), for each k of which all have enough samples."""
    fewest = min((samples for samples, _ in counts), default=0)
    return {
        f"pass@{k}": mean_of([pass_at_k(samples, passed, k) for samples, passed in counts]) for k in ks if k <= fewest
    }


def mean_of(values: Sequence[float | Fraction]) -> dict[str, Any]:
    """With its standard error over problems or sentences, which a single one does not have."""
    exact = [Fraction(value) for value in values]
    mean = sum(exact, Fraction(0)) / len(exact)
    variance = sum(((value - mean) ** 2 for value in exact), Fraction(0)) / max(len(exact) - 1, 1)
    error = math.sqrt(variance / len(exact)) if len(exact) > 1 else None
    return {"value": float(mean), "standard_error": error, "count": len(exact)}


def kind_of_answer(completion: str, finish: str, language: str) -> str | None:
    """One of KINDS; None for an answer that ended by itself and holds code."""
    if not completion.strip():
        return "empty"
    if finish in CUT_OFF:
        return "cut"
    return None if has_code(completion, language) else "no_code"


def kinds_by_problem(answers: Iterable[tuple[str, str, str, str]]) -> dict[str, dict[tuple[str, str], Fraction]]:
    """Of each kind, its share of the answers to each problem. An answer is (language, problem, completion, finish)."""
    kinds: dict[tuple[str, str], list[str | None]] = defaultdict(list)
    for language, task_id, completion, finish in answers:
        kinds[language, task_id].append(kind_of_answer(completion, finish, language))
    return {kind: {key: Fraction(of.count(kind), len(of)) for key, of in kinds.items()} for kind in KINDS}


def shares_of_kinds(answers: Iterable[tuple[str, str, str, str]]) -> Metrics:
    return {kind: mean_of([*shares.values()]) for kind, shares in kinds_by_problem(answers).items() if shares}
