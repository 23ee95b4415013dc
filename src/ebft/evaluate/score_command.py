"""`ebft score`: completions made elsewhere, scored without a model.

Everything is read and checked before anything runs or is written. The outcome of each program is appended to
`<output>.samples.jsonl` as it comes, so that a run that was stopped resumes where it was; the results file is written
at the end.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ebft.errors import DataError, nearest
from ebft.evaluate.sample_files import read_samples, read_translations
from ebft.problems import translation
from ebft.problems.catalog import BENCHMARKS, load_problems
from ebft.problems.multipl_e import language_code
from ebft.problems.problem import Problem
from ebft.runtime.files import locked, write_jsonl
from ebft.sandbox.box import Sandbox
from ebft.tasks.scoring import (
    MEMORY_MIB,
    TIMEOUT,
    available_cores,
    ebft_version,
    outcomes_file_of,
    program_limits,
    score_samples,
    write_results,
)
from ebft.tasks.translation_scores import TranslationScoring, score_translations

TASKS = (*BENCHMARKS, "translation")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "task", metavar="TASK", help=f"{', '.join(TASKS)}; or a folder of `ebft eval --no-score`, or of a study of them"
    )
    add("--problems", default=None, help="JSONL (or .jsonl.gz) in the dataset's own fields, or a hub name")
    add("--samples", default=None, help="JSONL with task_id (or name) and completion; several per task give pass@k")
    add("--output", default=None, help="results as JSON; FILE.samples.jsonl beside it has each sample's outcome")
    add("--workers", type=int, default=None, help="programs at a time [the number of cores]")
    add("--timeout", type=float, default=TIMEOUT, help="seconds for each program [10]; compiling has its own limit")
    add("--memory", type=int, default=MEMORY_MIB, help="MiB for each program [1024]")
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
        raise DataError(
            f"unknown task {options.task!r}, and no such folder; there is {', '.join(TASKS)}"
            f"{nearest(options.task, TASKS)}"
        )
    for name in ("problems", "samples", "output"):
        if getattr(options, name) is None:
            raise DataError(f"`ebft score {options.task}` needs --{name} FILE")
    output = Path(options.output).expanduser()
    if output.is_dir():
        raise DataError(f"--output {output} is a folder; give the name of a file")
    for name in ("problems", "samples"):
        given = Path(getattr(options, name)).expanduser().resolve()
        for written in (output, outcomes_file_of(output)):
            if given == written.resolve():
                raise DataError(f"--output {output} would overwrite the {name} in {written}; choose another name")
    with locked(output.with_name(f"{output.name}.lock"), output):
        results = _score_translation(options, output) if options.task == "translation" else _score_code(options, output)
        write_results(output, results)
    return results


def _score_code(options: argparse.Namespace, output: Path) -> dict[str, Any]:
    ks = _ks(options.k or "1,4,16")
    workers = options.workers if options.workers is not None else available_cores()
    if workers < 1:
        raise DataError(f"--workers {workers} must be at least 1")
    sandbox = Sandbox(options.unsafe_exec, program_limits(options.timeout, options.memory))
    problems = load_problems(options.task, options.problems)
    if options.language:
        problems = _of_language(problems, options)
    samples = read_samples(options.samples, problems)
    found = score_samples(problems, samples, sandbox, outcomes_file_of(output), ks, workers)
    sources = {"problems": options.problems, "samples": options.samples, "language": options.language}
    return {"task": options.task, **found, "settings": {**sources, **found["settings"]}}


def _ks(text: str) -> list[int]:
    try:
        ks = sorted({int(part) for part in str(text).split(",")})
    except ValueError:
        ks = []
    if not ks or ks[0] < 1:
        raise DataError(f"--k {text} is not a list of positive whole numbers such as 1,4,16")
    return ks


def _of_language(problems: list[Problem], options: argparse.Namespace) -> list[Problem]:
    wanted = language_code(options.language) if options.task == "multipl-e" else options.language
    languages = sorted({problem.language for problem in problems})
    if wanted not in languages:
        raise DataError(f"--language {options.language}: {options.problems} has {', '.join(languages)}")
    return [problem for problem in problems if problem.language == wanted]


def _score_translation(options: argparse.Namespace, output: Path) -> dict[str, Any]:
    """Problems without ids are numbered by line, from 1. Several completions of a task give best-of-k."""
    if options.k is not None:
        raise DataError("--k is for code: translations have no pass@k; leave it out")
    fields = translation.find_fields(options.problems, "test", options.source_field, options.target_field)
    pairs = translation.read_pairs(options.problems, "test", *fields)
    texts = read_translations(options.samples, pairs, options.problems)
    language = fields[1] if fields[1] in translation.LANGUAGE_NAMES else ""
    scoring = TranslationScoring(
        options.target_language or options.target_field or language,
        options.bleu_tokenize,
        options.comet_model,
        options.comet_python,
    )
    results = {
        "task": "translation",
        **score_translations(pairs, texts, scoring),
        "counts": {"problems": len(pairs), "samples": sum(map(len, texts))},
        "settings": {"problems": options.problems, "samples": options.samples, **asdict(scoring)},
        "versions": {"ebft": ebft_version(), "sacrebleu": version("sacrebleu")},
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    write_jsonl(outcomes_file_of(output), results.pop("sentences"))
    return results


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
