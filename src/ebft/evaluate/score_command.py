"""`ebft score`: completions made elsewhere, scored without a model.

Everything is read and checked before anything runs or is written. Outcomes are appended one by one to
`<output>.samples.jsonl`, so a run that was stopped goes on where it was; the results file is written at the end.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import platform
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ebft.errors import DataError
from ebft.problems.code import Attempt, Problem, load_problems, run_many
from ebft.problems.records import read_records
from ebft.sandbox.isolated_tests import ERROR, PASSED, SKIPPED, STATUSES, Outcome
from ebft.sandbox.isolation import Limits, Sandbox, bubblewrap_version
from ebft.tasks.pass_at_k import summarise

CODE_TASKS = ("humaneval", "mbpp", "multipl-e")
TASKS = (*CODE_TASKS, "translation")


@dataclass(frozen=True)
class Sample:
    problem: Problem
    number: int  # counts the samples of one problem
    completion: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("task", metavar="TASK", help=", ".join(TASKS))
    add("--problems", required=True, help="JSONL (or .jsonl.gz) in the dataset's own fields, or a hub name")
    add("--samples", required=True, help="JSONL with task_id (or name) and completion; several per task give pass@k")
    add("--output", required=True, help="results as JSON; FILE.samples.jsonl beside it has each sample's outcome")
    add("--workers", type=int, default=None, help="programs at a time [the number of cores]")
    add("--timeout", type=float, default=10.0, help="seconds for each program [10]; compiling has its own limit")
    add("--memory", type=int, default=1024, help="MiB for each program [1024]")
    add("--k", default=None, help="of code: which pass@k to report, where there are enough samples [1,4,16]")
    add("--language", default=None, help="of multipl-e: only problems in this language")
    add("--unsafe-exec", action="store_true", help="run programs without a sandbox, with your own rights")
    add("--source-field", default=None, help="of translation: field of the source, such as de [src, source]")
    add("--target-field", default=None, help="of translation: field of the reference(s), such as en [ref, refs]")
    add("--target-language", default=None, help="of translation: code for BLEU's tokenizer, such as zh")
    add("--bleu-tokenize", default=None, help="of translation: sacrebleu's tokenizer")
    add("--comet-model", default=None, help="of translation: name or path of a COMET model")
    add("--comet-python", default=None, help="of translation: Python of an environment with unbabel-comet")


def score(options: argparse.Namespace) -> dict[str, Any]:
    """Scores as the command line says, writes the results and returns them."""
    if options.task not in TASKS:
        raise DataError(f"unknown task {options.task!r}; there is {', '.join(TASKS)}{_nearest(options.task, TASKS)}")
    output = Path(options.output).expanduser()
    if output.is_dir():
        raise DataError(f"--output {output} is a folder; give the name of a file")
    for name in ("problems", "samples"):
        given = Path(getattr(options, name)).expanduser().resolve()
        for written in (output, samples_file(output)):
            if given == written.resolve():
                raise DataError(f"--output {output} would overwrite the {name} in {written}; choose another name")
    if options.task == "translation":
        if options.k is not None:
            raise DataError("--k is for code: translations have no pass@k; leave it out")
        from ebft.tasks import translation

        found = translation.score(
            options.problems,
            options.samples,
            options.source_field,
            options.target_field,
            translation.Scoring(
                options.target_language or options.target_field or "",
                options.bleu_tokenize,
                options.comet_model,
                options.comet_python,
            ),
        )
        results: dict[str, Any] = {"task": "translation", **found}
        output.parent.mkdir(parents=True, exist_ok=True)
        _write_rows(samples_file(output), results.pop("sentences"))
        _write(output, results)
        return results
    return _score_code(options, output)


def _score_code(options: argparse.Namespace, output: Path) -> dict[str, Any]:
    started = time.monotonic()
    ks = _ks(options.k or "1,4,16")
    workers = options.workers if options.workers is not None else _cores()
    if workers < 1:
        raise DataError(f"--workers {workers} must be at least 1")
    if not (math.isfinite(options.timeout) and 0 < options.timeout <= 86400):
        raise DataError(f"--timeout {options.timeout} must be a positive number of seconds")
    if options.memory < 64:
        raise DataError(f"--memory {options.memory} is less than any interpreter needs; use at least 64 MiB")
    problems = load_problems(options.task, options.problems)
    if options.language:
        problems = _of_language(problems, options)
    samples = read_samples(options.samples, problems)
    limits = Limits(seconds=options.timeout, memory_mib=options.memory)
    sandbox = Sandbox(unsafe=options.unsafe_exec, limits=limits)
    skipped = {p.language: reason for p in problems if (reason := p.unavailable()) is not None}
    if any(sample.problem.language not in skipped for sample in samples):
        sandbox.check()
    rows = _run(samples, skipped, sandbox, limits, workers, output)
    results = _results(options, problems, samples, rows, ks, skipped, limits, workers)
    results["seconds"] = round(time.monotonic() - started, 3)
    _write(output, results)
    return results


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _ks(text: str) -> list[int]:
    try:
        ks = sorted({int(part) for part in str(text).split(",")})
    except ValueError:
        ks = []
    if not ks or ks[0] < 1:
        raise DataError(f"--k {text} is not a list of positive whole numbers such as 1,4,16")
    return ks


def _of_language(problems: list[Problem], options: argparse.Namespace) -> list[Problem]:
    from ebft.problems.multipl_e import language_name

    wanted = language_name(options.language) if options.task == "multipl-e" else options.language
    languages = sorted({problem.language for problem in problems})
    if wanted not in languages:
        raise DataError(f"--language {options.language}: {options.problems} has {', '.join(languages)}")
    return [problem for problem in problems if problem.language == wanted]


def read_samples(source: str, problems: Sequence[Problem]) -> list[Sample]:
    """Samples in the file's order, each with its problem."""
    by_id: dict[str, list[Problem]] = defaultdict(list)
    for problem in problems:
        by_id[problem.task_id].append(problem)
    if not Path(source).expanduser().is_file():
        raise DataError(f"{source}: no such file")
    counted: Counter[tuple[str, str]] = Counter()
    samples: list[Sample] = []
    for record in read_records(source):
        name = record.row.get("task_id", record.row.get("name"))
        if name is None:
            raise DataError(f"{record.where} has neither 'task_id' nor 'name'")
        if isinstance(name, bool) or not isinstance(name, (str, int)):
            raise DataError(f"{record.where}: the field 'task_id' is a {type(name).__name__}, not a string or number")
        task_id = _known(str(name), by_id)
        if task_id is None:
            raise DataError(f"{record.where}: unknown task {str(name)[:100]!r}{_nearest(str(name)[:100], by_id)}")
        found = by_id[task_id]
        if len(found) > 1:
            language = record.row.get("language")
            found = [problem for problem in found if problem.language == language]
            if not found:
                raise DataError(
                    f"{record.where}: the task {task_id!r} exists in several languages; add a field 'language', or "
                    "choose one with --language"
                )
        counted[found[0].task_id, found[0].language] += 1
        number = counted[found[0].task_id, found[0].language] - 1
        samples.append(Sample(found[0], number, record.text("completion")))
    return samples


def _known(name: str, by_id: dict[str, list[Problem]]) -> str | None:
    """The problem's own name; `MBPP/11` and `Mbpp/11` also stand for 11."""
    if name in by_id:
        return name
    start, _, rest = name.partition("/")
    return rest if start.lower() == "mbpp" and rest in by_id else None


def _nearest(word: str, options: Iterable[str]) -> str:
    from ebft.errors import nearest  # brings in transformers, which takes seconds

    return nearest(word, options)


def samples_file(output: Path) -> Path:
    return output.with_name(f"{output.stem}.samples.jsonl")


def _run(
    samples: Sequence[Sample],
    skipped: dict[str, str],
    sandbox: Sandbox,
    limits: Limits,
    workers: int,
    output: Path,
) -> list[dict[str, Any]]:
    """The outcome of each sample, in the file's order; those of an earlier run with the same settings are kept."""
    from tqdm import tqdm

    versions = {language: _toolchains([language]) for language in {s.problem.language for s in samples}}
    file = samples_file(output)
    earlier = _earlier(file)
    rows: list[dict[str, Any] | None] = [None] * len(samples)
    todo: list[Attempt] = []
    for place, sample in enumerate(samples):
        key = _key(sample, limits, sandbox.unsafe, versions[sample.problem.language])
        if sample.problem.language in skipped:
            rows[place] = _row(sample, key, Outcome(SKIPPED, skipped[sample.problem.language]))
        elif earlier[key]:
            before = earlier[key].pop()
            rows[place] = _row(sample, key, Outcome(before["status"], before["message"]))
        else:
            todo.append(Attempt(sample.problem, sample.completion, (place, key)))
    file.parent.mkdir(parents=True, exist_ok=True)
    _write_rows(file, [row for row in rows if row is not None])
    done = len(samples) - len(todo)
    if done and todo:
        print(f"{done} of {len(samples)} outcomes are there from before", file=sys.stderr)
    progress = tqdm(total=len(samples), initial=done, desc="programs", unit="", file=sys.stderr, disable=None)
    passed = sum(row is not None and row["status"] == PASSED for row in rows)
    with progress, file.open("a", encoding="utf-8") as appended:
        for attempt, outcome in run_many(todo, sandbox, limits, workers):
            place, key = attempt.tag
            rows[place] = row = _row(samples[place], key, outcome)
            appended.write(json.dumps(row) + "\n")
            appended.flush()
            passed += outcome.passed
            progress.set_postfix(passed=passed, refresh=False)
            progress.update()
    complete = [row for row in rows if row is not None]
    _write_rows(file, complete)
    return complete


def _row(sample: Sample, key: str, outcome: Outcome) -> dict[str, Any]:
    return {
        "task_id": sample.problem.task_id,
        "language": sample.problem.language,
        "sample": sample.number,
        "status": outcome.status,
        "passed": outcome.passed,
        "message": outcome.message,
        "key": key,
    }


def _key(sample: Sample, limits: Limits, unsafe: bool, versions: dict[str, str]) -> str:
    """Equal for two runs only if problem, completion, limits and toolchain are equal."""
    content = [repr(sample.problem), sample.completion, asdict(limits), unsafe, versions]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode("ascii")).hexdigest()[:32]


def _earlier(file: Path) -> dict[str, list[dict[str, Any]]]:
    """Outcomes of an earlier run by key; not those that were nobody's fault, nor a last line that was cut off."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
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
    options: argparse.Namespace,
    problems: Sequence[Problem],
    samples: Sequence[Sample],
    rows: Sequence[dict[str, Any]],
    ks: Sequence[int],
    skipped: dict[str, str],
    limits: Limits,
    workers: int,
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
    results: dict[str, Any] = {
        "task": options.task,
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
        "problems_without_samples": without,
        "skipped_languages": skipped,
        "notes": notes,
        "settings": {
            "problems": options.problems,
            "samples": options.samples,
            "k": list(ks),
            "language": options.language,
            "timeout": limits.seconds,
            "memory_mib": limits.memory_mib,
            "workers": workers,
            "unsafe_exec": options.unsafe_exec,
        },
        "versions": _versions(languages, options.unsafe_exec),
    }
    if len(languages) > 1:
        results["by_language"] = {
            language: summarise([(n, c) for (spoken, _), (n, c) in counts.items() if spoken == language], ks)[0]
            for language in languages
        }
    return results


def _versions(languages: Sequence[str], unsafe: bool) -> dict[str, str]:
    import ebft

    found = {"ebft": ebft.__version__, "platform": platform.platform()}
    found["sandbox"] = "none" if unsafe else f"bubblewrap {'.'.join(map(str, bubblewrap_version()))}"
    return found | _toolchains(languages)


def _toolchains(languages: Sequence[str]) -> dict[str, str]:
    from ebft.sandbox.languages import LANGUAGES

    found: dict[str, str] = {}
    for language in languages:
        if language == "python":
            found["python"] = platform.python_version()
        else:
            found |= LANGUAGES[language].versions()
    return found


def _write_rows(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    partial = file.with_name(f"{file.name}.partial")
    partial.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    partial.replace(file)


def _write(output: Path, results: dict[str, Any]) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = output.with_name(f"{output.name}.partial")
    partial.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    partial.replace(output)


def table(results: dict[str, Any]) -> list[tuple[str, ...]]:
    """What to show a reader: a row for each value, then the counts."""
    rows: list[tuple[str, ...]] = [(str(results["task"]), "value", "standard error")]
    named = dict(results.get("metrics", {}))
    for language, metrics in results.get("by_language", {}).items():
        named |= {f"{language} {name}": found for name, found in metrics.items()}
    for name, found in named.items():
        error = found.get("standard_error")
        rows.append((name, f"{found['value']:.4f}", "" if error is None else f"{error:.4f}"))
    for name, count in {**results.get("counts", {}), **results.get("statuses", {})}.items():
        rows.append((name.replace("_", " "), str(count), ""))
    return rows
