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
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ebft.errors import DataError
from ebft.problems.answers import has_code
from ebft.problems.problem import Attempt, Problem, run_many
from ebft.runtime.files import write_jsonl, write_text
from ebft.runtime.messages import progress
from ebft.sandbox.box import Limits, Sandbox
from ebft.sandbox.bubblewrap import bubblewrap_version
from ebft.sandbox.other_languages import LANGUAGES, NOT_COMPILED
from ebft.sandbox.python_tests import ERROR, PASSED, SKIPPED, STATUSES, Outcome

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
    workers = available_cores() if workers is None else workers
    skipped = {p.language: reason for p in problems if (reason := p.unavailable()) is not None}
    if any(sample.problem.language not in skipped for sample in samples):
        sandbox.check()
    rows = _run(samples, skipped, sandbox, workers, outcomes_file)
    results = _results(problems, samples, rows, ks, skipped)
    results["settings"] = {
        "k": list(ks),
        "timeout": sandbox.limits.seconds,
        "memory_mib": sandbox.limits.memory_mib,
        "workers": workers,
        "unsafe_exec": sandbox.unsafe,
        "control_groups": sandbox.control_groups,
    }
    results["versions"] = {
        "ebft": ebft_version(),
        "harness": str(HARNESS),
        "platform": platform.platform(),
        "sandbox": "none" if sandbox.unsafe else f"bubblewrap {bubblewrap_version()}",
        **_toolchains(sorted({problem.language for problem in problems})),
    }
    results["seconds"] = round(time.monotonic() - started, 3)
    return results


def outcomes_file_of(output: Path) -> Path:
    return output.with_name(f"{output.stem}.samples.jsonl")


def write_results(output: Path, results: Mapping[str, Any]) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    write_text(output, json.dumps(results, indent=2) + "\n")


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _run(
    samples: Sequence[Sample], skipped: Mapping[str, str], sandbox: Sandbox, workers: int, outcomes_file: Path
) -> list[Row]:
    """The outcome of each sample, in their order; those of an earlier run with the same settings are kept."""
    versions = {language: _toolchains([language]) for language in {s.problem.language for s in samples}}
    earlier = _earlier(outcomes_file)
    rows: list[Row | None] = [None] * len(samples)
    todo: list[Attempt] = []
    for place, sample in enumerate(samples):
        key = _key(sample, sandbox, versions[sample.problem.language])
        if sample.problem.language in skipped:
            rows[place] = _row(sample, key, Outcome(SKIPPED, skipped[sample.problem.language]))
        elif earlier[key]:
            before = earlier[key].pop()
            rows[place] = _row(sample, key, Outcome(before["status"], before["message"]))
        else:
            todo.append(Attempt(sample.problem, sample.completion, (place, key)))
    outcomes_file.parent.mkdir(parents=True, exist_ok=True)
    write_jsonl(outcomes_file, [row for row in rows if row is not None])
    done = len(samples) - len(todo)
    if done and todo:
        logger.info(f"{done} of {len(samples)} outcomes already exist")
    with progress("programs", len(samples), done) as advance, outcomes_file.open("a", encoding="utf-8") as appended:
        for attempt, outcome in run_many(todo, sandbox, sandbox.limits, workers):
            place, key = attempt.tag
            rows[place] = row = _row(samples[place], key, outcome)
            appended.write(json.dumps(row) + "\n")
            appended.flush()
            advance(1)
    complete = [row for row in rows if row is not None]
    write_jsonl(outcomes_file, complete)
    return complete


def _row(sample: Sample, key: str, outcome: Outcome) -> Row:
    problem = sample.problem
    return {
        **{"task_id": problem.task_id, "language": problem.language, "sample": sample.number},
        **{"status": outcome.status, "passed": outcome.passed, "message": outcome.message, "key": key},
    }


def _key(sample: Sample, sandbox: Sandbox, versions: dict[str, str]) -> str:
    """Equal for two runs only if problem, completion, limits, toolchain and our own reading of answers are equal."""
    content = [repr(sample.problem), sample.completion, asdict(sandbox.limits), sandbox.unsafe, versions, HARNESS]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode("ascii")).hexdigest()[:32]


def _earlier(file: Path) -> dict[str, list[Row]]:
    """Outcomes of an earlier run by key, without errors of the harness, skips, and a last line that was cut off."""
    found: dict[str, list[Row]] = defaultdict(list)
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else ():
        try:
            row = json.loads(line)
            if row["status"] in STATUSES and row["status"] not in (ERROR, SKIPPED) and isinstance(row["message"], str):
                found[row["key"]].append(row)
        except (ValueError, KeyError, TypeError):
            continue
    return found


def _results(
    problems: Sequence[Problem],
    samples: Sequence[Sample],
    rows: Sequence[Row],
    ks: Sequence[int],
    skipped: Mapping[str, str],
) -> dict[str, Any]:
    counts: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    answers: list[tuple[str, str, str, str]] = []
    for sample, row in zip(samples, rows, strict=True):
        if row["status"] != SKIPPED:
            pair = counts[row["language"], row["task_id"]]
            pair[0] += 1
            pair[1] += row["status"] == PASSED
            answers.append((row["language"], row["task_id"], sample.completion, sample.finish))
    metrics = pass_at_ks(list(counts.values()), ks)
    notes = [f"{language} is skipped: {reason}" for language, reason in skipped.items()]
    attempted = {(sample.problem.language, sample.problem.task_id) for sample in samples}
    without = [p.task_id for p in problems if (p.language, p.task_id) not in attempted]
    if without:
        notes.append(f"{len(without)} of {len(problems)} problems have no sample and are not counted")
    if missing := [f"pass@{k}" for k in ks if counts and f"pass@{k}" not in metrics]:
        notes.append(f"not reported: {', '.join(missing)}; pass@k needs k samples of every problem")
    statuses = Counter(row["status"] for row in rows)
    if statuses[ERROR]:
        notes.append(f"{statuses[ERROR]} samples ended in an error of the harness and count as not passed")
    languages = sorted({problem.language for problem in problems})
    for language in languages:
        messages = [row["message"] for row in rows if row["language"] == language and row["status"] != SKIPPED]
        if len(messages) > 1 and all(message.startswith(NOT_COMPILED) for message in messages):
            notes.append(f"no answer in {language} compiles: its toolchain may be broken ({_toolchains([language])})")
    results: dict[str, Any] = {
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
        "skipped_languages": dict(skipped),
        "notes": notes,
    }
    if len(languages) > 1:
        results["by_language"] = {
            language: pass_at_ks([pair for (spoken, _), pair in counts.items() if spoken == language], ks)
            for language in languages
        }
    return results


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


def mean_of(values: Sequence[Fraction]) -> dict[str, Any]:
    """With its standard error over problems, which a single one does not have."""
    mean = sum(values, Fraction(0)) / len(values)
    variance = sum(((value - mean) ** 2 for value in values), Fraction(0)) / max(len(values) - 1, 1)
    error = math.sqrt(variance / len(values)) if len(values) > 1 else None
    return {"value": float(mean), "standard_error": error, "count": len(values)}


def kind_of_answer(completion: str, finish: str, language: str) -> str | None:
    """One of KINDS; None for an answer that ended by itself and holds code."""
    if not completion.strip():
        return "empty"
    if finish in CUT_OFF:
        return "cut"
    return None if has_code(completion, language) else "no_code"


def kinds_by_problem(answers: Iterable[tuple[str, str, str, str]]) -> dict[str, dict[tuple[str, str], Fraction]]:
    """Of each kind, its share of the answers to each problem. An answer is (language, problem, completion, finish)."""
    counts: Counter[tuple[str, str]] = Counter()
    of_kind: Counter[tuple[str | None, tuple[str, str]]] = Counter()
    for language, task_id, completion, finish in answers:
        counts[language, task_id] += 1
        of_kind[kind_of_answer(completion, finish, language), (language, task_id)] += 1
    return {kind: {key: Fraction(of_kind[kind, key], counts[key]) for key in counts} for kind in KINDS}


def shares_of_kinds(answers: Iterable[tuple[str, str, str, str]]) -> Metrics:
    by_problem = kinds_by_problem(answers)
    return {kind: mean_of(list(shares.values())) for kind, shares in by_problem.items() if shares}


def ebft_version() -> str:
    try:
        return version("ebft")
    except PackageNotFoundError:
        return "not installed"  # as `ebft env` says of a checkout that is only on the path


def _toolchains(languages: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for language in languages:
        found |= {"python": platform.python_version()} if language == "python" else LANGUAGES[language].versions()
    return found
