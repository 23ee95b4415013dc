"""`ebft score TASK --samples FILE`: completions made elsewhere, scored without a model. `ebft score FOLDER`: what
`ebft eval --no-score` has generated, scored where there is a sandbox.

The folder is an evaluation's or one with many of them, such as a study's. Their results are completed as if they had
been scored at once.
"""

from __future__ import annotations

import argparse
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from ebft.config.evaluation import EvalOptions
from ebft.config.settings import Parser
from ebft.errors import ConfigError, DataError, nearest
from ebft.evaluate import eval_command, tables
from ebft.evaluate.scoring import (
    MEMORY_MIB,
    TIMEOUT,
    Sample,
    available_cores,
    ebft_version,
    outcomes_file_of,
    program_limits,
    score_samples,
    write_results,
)
from ebft.evaluate.tasks import problem_sets
from ebft.evaluate.translation_scores import TranslationScoring, score_translations
from ebft.problems import translation
from ebft.problems.catalog import BENCHMARKS, load_problems
from ebft.problems.multipl_e import language_code
from ebft.problems.problem import Problem, read_records
from ebft.runtime.files import locked, read_json, write_json, write_jsonl
from ebft.runtime.messages import print_error, print_table
from ebft.sandbox.box import Sandbox

logger = logging.getLogger(__name__)

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
    add("--k", default="1,4,16", help="of code: which pass@k to report, where there are enough samples [1,4,16]")
    add("--language", default=None, help="of multipl-e: only problems in this language")
    add("--unsafe-exec", action="store_true", help="run programs without a sandbox, with your own rights")
    add("--source-field", default=None, help="of translation: field of the source, such as de [src, source]")
    add("--target-field", default=None, help="of translation: field of the reference(s), such as en [ref, refs]")
    add("--target-language", default="", help="of translation: code for BLEU's tokenizer, such as zh")
    add("--bleu-tokenize", default=None, help="of translation: sacrebleu's tokenizer")
    add("--comet-model", default=None, help="of translation: name or path of a COMET model")
    add("--comet-python", default=None, help="of translation: Python of an environment with unbabel-comet")


# ---- samples made elsewhere ------------------------------------------------------------------------------------------


def score(options: argparse.Namespace) -> dict[str, Any]:
    """Scores as the command line says, writes the results and returns them."""
    if options.task not in TASKS:
        raise DataError(f"unknown task {options.task!r}, and no such folder{nearest(options.task, TASKS)}")
    for name in ("problems", "samples", "output"):
        if getattr(options, name) is None:
            raise DataError(f"`ebft score {options.task}` needs --{name} FILE")
    output = Path(options.output).expanduser()
    given = {Path(name).expanduser().resolve() for name in (options.problems, options.samples)}
    if output.is_dir() or {output.resolve(), outcomes_file_of(output).resolve()} & given:
        raise DataError(f"--output {output} is a folder, or would overwrite problems or samples; choose another name")
    with locked(output.with_name(f"{output.name}.lock"), output):
        of_task = _score_translation if options.task == "translation" else _score_code
        results = {"task": options.task, **of_task(options, outcomes_file_of(output))}
        write_results(output, results)
    return results


def _score_code(options: argparse.Namespace, outcomes_file: Path) -> dict[str, Any]:
    sandbox = Sandbox(options.unsafe_exec, program_limits(options.timeout, options.memory))
    problems = load_problems(options.task, options.problems)
    if options.language:
        wanted = language_code(options.language) if options.task == "multipl-e" else options.language
        problems = [problem for problem in problems if problem.language == wanted]
    samples = read_samples(options.samples, problems)
    ks = sorted({int(k) for k in options.k.split(",")})
    found = score_samples(problems, samples, sandbox, outcomes_file, ks, options.workers or available_cores())
    sources = {"problems": options.problems, "samples": options.samples, "language": options.language}
    return {**found, "settings": {**sources, **found["settings"]}}


def read_samples(source: str, problems: Sequence[Problem]) -> list[Sample]:
    """Programs in the file's order, each with its problem; `MBPP/11` also stands for 11."""
    by_id: dict[tuple[str, str | None], Problem] = {}
    for problem in problems:
        by_id[problem.task_id, problem.language] = by_id[problem.task_id, None] = problem
    several = len({problem.language for problem in problems}) > 1
    counted: Counter[tuple[str, str]] = Counter()
    samples: list[Sample] = []
    for record in read_records(source):
        name = str(record.row.get("task_id", record.row.get("name")))
        language = record.row.get("language") if several else None
        found = by_id.get((name, language)) or by_id.get((name.split("/")[-1], language))
        if found is None or (several and language is None):
            of = (
                f" in {language or 'several languages (add a field language, or choose --language)'}" if several else ""
            )
            raise DataError(f"{record.where}: there is no problem {name[:100]!r}{of}")
        key = (found.task_id, found.language)
        finish = record.row.get("finish")  # of `ebft eval`'s own files
        samples.append(
            Sample(found, counted[key], record.text("completion"), finish if isinstance(finish, str) else "")
        )
        counted[key] += 1
    return samples


def _score_translation(options: argparse.Namespace, sentences_file: Path) -> dict[str, Any]:
    """Problems without ids are numbered by line, from 1. Several completions of a task give best-of-k."""
    fields = translation.find_fields(options.problems, "test", (options.source_field, options.target_field))
    pairs = translation.read_pairs(options.problems, "test", *fields)
    texts: dict[str, list[str]] = {pair.key: [] for pair in pairs}
    for record in read_records(options.samples):
        key = translation.row_id(record) or ""
        if key not in texts:
            raise DataError(
                f"{record.where} is for the unknown task {key!r}; {options.problems} has {next(iter(texts))!r}"
            )
        texts[key].append(record.text("completion"))
    if missing := [key for key, of_pair in texts.items() if not of_pair]:
        raise DataError(
            f"{options.samples} has no sample for {len(missing)} of {len(texts)} tasks, such as {missing[0]}"
        )
    language = fields[1] if fields[1] in translation.LANGUAGE_NAMES else ""
    target = options.target_language or options.target_field or language or ""
    scoring = TranslationScoring(target, options.bleu_tokenize, options.comet_model, options.comet_python)
    found = score_translations(pairs, list(texts.values()), scoring)
    sentences_file.parent.mkdir(parents=True, exist_ok=True)
    write_jsonl(sentences_file, found.pop("sentences"))
    return {
        **found,
        "counts": {"problems": len(pairs), "samples": sum(map(len, texts.values()))},
        "settings": {"problems": options.problems, "samples": options.samples, **asdict(scoring)},
        "versions": {"ebft": ebft_version(), "sacrebleu": version("sacrebleu")},
    }


def table(results: Mapping[str, Any]) -> tables.Rows:
    """What to show a reader: a row for each value, then the counts."""
    rows: tables.Rows = [(str(results["task"]), "value", "standard error")]
    named = dict(results["metrics"])
    for language, metrics in results.get("by_language", {}).items():
        named |= {f"{language} {name}": found for name, found in metrics.items()}
    for name, found in named.items():
        error = found["standard_error"]
        rows.append((name, f"{found['value']:.4f}", "" if error is None else f"{error:.4f}"))
    counts = {**results["counts"], **results.get("statuses", {})}
    return rows + [(name.replace("_", " "), str(count), "") for name, count in counts.items()]


# ---- folders of `ebft eval --no-score` -------------------------------------------------------------------------------


class ScoredFolder(NamedTuple):
    table: tables.Rows  # a row for every metric of every evaluation
    errors: list[str]  # of evaluations that could not be scored


def score_folder(options: argparse.Namespace) -> ScoredFolder:
    """Scores what is left to score in all evaluations of the folder; one that cannot be scored stops no other."""
    folder = Path(options.task).expanduser()
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    for name in vars(options).keys() - {"task", "problems", "workers", "unsafe_exec"}:
        if getattr(options, name) != parser.get_default(name):
            raise DataError(f"--{name.replace('_', '-')} is not for a folder: its settings are those of its evaluation")
    found = {file.parent: read_json(file) or {} for file in sorted(folder.rglob(tables.RESULTS_FILE))}
    left = {
        place: [task for task, entry in results["tasks"].items() if not tables.is_scored(entry)]
        for place, results in found.items()
        if "tasks" in results
    }
    if not left:
        raise DataError(f"{folder} holds no results of `ebft eval`; score a file with `ebft score TASK --samples FILE`")
    problems = _problems(options.problems, {task for tasks in left.values() for task in tasks})
    errors = []
    for place, tasks in left.items():
        if tasks:
            with locked(place / eval_command.LOCK_FILE):
                for task in tasks:
                    logger.info(f"{place}: {task}")
                    try:
                        _score(place, task, problems.get(task), options)
                    except (DataError, ConfigError) as error:  # the latter: no sandbox
                        errors.append(f"{place}, {task}: {error}")
                _present(place, [place])
    if not any(left.values()):
        logger.info("nothing to score: all of it is scored already")
    elif len(left) > 1 and all(place.parent == folder for place in left):  # of several models, compared
        _present(folder, list(left))
    rows: tables.Rows = [("evaluation", "task", "metric", "value")]
    for name, place in zip(tables.labels([str(place) for place in left]), left, strict=True):
        rows += [(name, *row) for row in tables.table({name: tables.read_results(place)}, {})[1:]]
    return ScoredFolder(rows, errors)


def _problems(given: str | None, tasks: set[str]) -> dict[str, str]:
    """By task, where its problems are now: `FILE`, or `humaneval=FILE,mbpp=FILE`."""
    if given is None or given.partition("=")[0] in BENCHMARKS:
        return dict(pair.split("=", 1) for pair in (given or "").split(",") if "=" in pair)
    if len(tasks) > 1:
        named = ",".join(f"{task}=FILE" for task in sorted(tasks))
        raise DataError(f"--problems {given} is for one task, and there are several to score: use --problems {named}")
    return dict.fromkeys(tasks, given)


def _score(place: Path, task: str, problems: str | None, options: argparse.Namespace) -> None:
    from ebft.evaluate.run_task import score_sets  # brings in torch

    results = tables.read_results(place)
    entry = results["tasks"][task]
    asked = {**entry["settings"], "tasks": [task], "workers": options.workers, "unsafe_exec": options.unsafe_exec}
    if problems is not None:
        asked[task.replace("-", "_")] = problems
    chosen = EvalOptions.from_values({name: value for name, value in asked.items() if value is not None})
    try:
        sets = problem_sets(task, chosen)
    except DataError as error:
        raise DataError(f"{error}; say where its problems are: --problems {task}=FILE") from None
    scored = score_sets(chosen, place, sets)
    for note in scored["notes"]:
        logger.warning(f"{task}: {note}")
    results["tasks"][task] = {**scored, "settings": entry["settings"], "mark": entry["mark"]}
    write_json(place / tables.RESULTS_FILE, results)


def _present(folder: Path, places: Sequence[Path]) -> None:
    """The tables of `ebft eval`, of one model or of several in the order in which they were given."""

    def order(evaluated: tuple[tables.Results, Path]) -> int:
        results, _ = evaluated
        command = results.get("command", [])
        return command.index(results["model"]) if results["model"] in command else 0

    evaluated = sorted(((tables.read_results(place), place) for place in places), key=order)
    names = tables.labels([results["model"] for results, _ in evaluated])
    results = {name: found for name, (found, _) in zip(names, evaluated, strict=True)}
    eval_command.present(results, {name: place for name, (_, place) in zip(names, evaluated, strict=True)}, folder)


def command(arguments: list[str]) -> int:
    parser = Parser("score", "Score completions made elsewhere. The same command resumes where it stopped.")
    add_arguments(parser)
    options = parser.parse_args(arguments)
    if options.task not in TASKS and Path(options.task).expanduser().is_dir():
        scored = score_folder(options)
        print_table(scored.table)
        for error in scored.errors:
            print_error(error)
        return 2 if scored.errors else 0
    results = score(options)
    for note in results.get("notes", []):
        logger.warning(note)
    print_table(table(results))
    print(f"\n{options.output}")
    return 0
