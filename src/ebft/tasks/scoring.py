"""Scoring programs: from samples to outcomes to pass@k, for `ebft score` and `ebft eval` alike.

Outcomes are appended to a file one by one, so that a run that was stopped resumes where it was.
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
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ebft.errors import DataError
from ebft.problems.problem import Attempt, Problem, run_many
from ebft.runtime.files import write_jsonl, write_text
from ebft.runtime.messages import progress
from ebft.sandbox.box import Limits, Sandbox
from ebft.sandbox.bubblewrap import bubblewrap_version
from ebft.sandbox.other_languages import LANGUAGES, NOT_COMPILED
from ebft.sandbox.python_tests import ERROR, FAILED, PASSED, SKIPPED, STATUSES, Outcome
from ebft.tasks.answer_counts import CUT_OFF, is_empty, why_zero
from ebft.tasks.pass_at_k import summarise

logger = logging.getLogger(__name__)

TIMEOUT, MEMORY_MIB = 10.0, 1024
K = (1, 4, 16)
HARNESS = 6  # one more whenever answers are read or run in another way, so that outcomes of before are not kept

Row = dict[str, Any]


@dataclass(frozen=True)
class Sample:
    problem: Problem
    number: int  # counts the samples of one problem
    completion: str
    finish: str = ""  # how its generation ended, where that is known


def program_limits(timeout: float, memory_mib: int) -> Limits:
    if not (math.isfinite(timeout) and 0 < timeout <= 86400):
        raise DataError(f"--timeout {timeout} must be a positive number of seconds")
    if memory_mib < 64:
        raise DataError(f"--memory {memory_mib} is less than any interpreter needs; use at least 64 MiB")
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
    results["versions"] = _versions(sorted({problem.language for problem in problems}), sandbox.unsafe)
    results["seconds"] = round(time.monotonic() - started, 3)
    return results


def outcomes_file_of(output: Path) -> Path:
    return output.with_name(f"{output.stem}.samples.jsonl")


def write_results(output: Path, results: dict[str, Any]) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    write_text(output, json.dumps(results, indent=2) + "\n")


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _run(
    samples: Sequence[Sample], skipped: dict[str, str], sandbox: Sandbox, workers: int, outcomes_file: Path
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
    return {
        "task_id": sample.problem.task_id,
        "language": sample.problem.language,
        "sample": sample.number,
        "status": outcome.status,
        "passed": outcome.passed,
        "message": outcome.message,
        "key": key,
    }


def _key(sample: Sample, sandbox: Sandbox, versions: dict[str, str]) -> str:
    """Equal for two runs only if problem, completion, limits, toolchain and our own reading of answers are equal."""
    content = [repr(sample.problem), sample.completion, asdict(sandbox.limits), sandbox.unsafe, versions, HARNESS]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode("ascii")).hexdigest()[:32]


def _earlier(file: Path) -> dict[str, list[Row]]:
    """Outcomes of an earlier run by key, without errors of the harness, skips, and a last line that was cut off."""
    found: dict[str, list[Row]] = defaultdict(list)
    if not file.is_file():
        return found
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
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
    skipped: dict[str, str],
) -> dict[str, Any]:
    counts: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        if row["status"] != SKIPPED:
            pair = counts.setdefault((row["language"], row["task_id"]), [0, 0])
            pair[0] += 1
            pair[1] += row["status"] == PASSED
    metrics, notes = summarise([(n, c) for n, c in counts.values()], ks)
    languages = sorted({problem.language for problem in problems})
    attempted = {(sample.problem.language, sample.problem.task_id) for sample in samples}
    without = [p.task_id for p in problems if (p.language, p.task_id) not in attempted]
    if without:
        notes.append(
            f"{len(without)} of {len(problems)} problems have no sample and are not counted; the values are means over "
            f"the {len(counts)} others"
        )
    for language, reason in skipped.items():
        notes.append(f"{language} is skipped: {reason}")
    statuses = Counter(row["status"] for row in rows)
    if statuses[ERROR]:
        notes.append(f"{statuses[ERROR]} samples ended in an error of the harness and count as not passed")
    for language in languages:
        messages = [row["message"] for row in rows if row["language"] == language and row["status"] != SKIPPED]
        if len(messages) > 1 and all(message.startswith(NOT_COMPILED) for message in messages):
            notes.append(f"no answer in {language} compiles: its toolchain may be broken ({_toolchains([language])})")
    answers = _answers(samples, rows)
    results: dict[str, Any] = {
        **{name: found["value"] for name, found in metrics.items()},  # short, as other tools print them
        "metrics": metrics,
        "counts": {
            "problems": len(problems),
            "problems_scored": len(counts),
            "problems_without_samples": len(without),
            "samples": len(samples),
            "samples_passed": statuses[PASSED],
        },
        "statuses": {status: statuses[status] for status in STATUSES},
        "answers": answers,
        "problems_without_samples": without,
        "skipped_languages": skipped,
        "notes": notes,
    }
    ran = len(rows) - statuses[SKIPPED]
    if ran and not statuses[PASSED]:
        results["example"] = _example(samples, rows, answers)
        notes.append(why_zero(answers, ran, results["example"]))
    if len(languages) > 1:
        results["by_language"] = {
            language: summarise([(n, c) for (spoken, _), (n, c) in counts.items() if spoken == language], ks)[0]
            for language in languages
        }
    return results


def _answers(samples: Sequence[Sample], rows: Sequence[Row]) -> dict[str, int]:
    """How many of the answers that were run are empty, were cut off, or are no programs (and not empty)."""
    ran = [(sample, row) for sample, row in zip(samples, rows, strict=True) if row["status"] != SKIPPED]
    return {
        "empty": sum(is_empty(sample.completion) for sample, _ in ran),
        "cut_off": sum(sample.finish in CUT_OFF for sample, _ in ran),
        "with_syntax_errors": sum(_kind(sample, row) == "with_syntax_errors" for sample, row in ran),
    }


# How the messages of programs that never ran begin, in all languages.
_NO_PROGRAM = (NOT_COMPILED, "SyntaxError", "IndentationError", "TabError")


def _kind(sample: Sample, row: Row) -> str:
    if is_empty(sample.completion):
        return "empty"
    no_program = row["status"] == FAILED and row["message"].startswith(_NO_PROGRAM)
    return "with_syntax_errors" if no_program else "other"


def _example(samples: Sequence[Sample], rows: Sequence[Row], answers: dict[str, int]) -> dict[str, Any]:
    """One answer of the kind that there is most of."""
    common = "empty" if answers["empty"] >= answers["with_syntax_errors"] else "with_syntax_errors"
    ran = [(sample, row) for sample, row in zip(samples, rows, strict=True) if row["status"] != SKIPPED]
    sample, row = next((pair for pair in ran if _kind(*pair) == common), ran[0])
    found = {"task_id": sample.problem.task_id, "language": sample.problem.language, "prompt": sample.problem.prompt()}
    return found | {"completion": sample.completion, "status": row["status"], "message": row["message"]}


def ebft_version() -> str:
    try:
        return version("ebft")
    except PackageNotFoundError:
        return "not installed"  # as `ebft env` says of a checkout that is only on the path


def _versions(languages: Sequence[str], unsafe: bool) -> dict[str, str]:
    found = {"ebft": ebft_version(), "harness": str(HARNESS), "platform": platform.platform()}
    found["sandbox"] = "none" if unsafe else f"bubblewrap {bubblewrap_version()}"
    return found | _toolchains(languages)


def _toolchains(languages: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for language in languages:
        if language == "python":
            found["python"] = platform.python_version()
        else:
            found |= LANGUAGES[language].versions()
    return found
