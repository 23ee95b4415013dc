"""`ebft score TASK --samples FILE`: completions made elsewhere, scored without a model. `ebft score FOLDER`: what
`ebft eval --no-score` has generated, in one evaluation or in many, such as a study's, scored where there is a sandbox,
with the same results as if it had been scored at once."""

from __future__ import annotations

import argparse
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ebft.config.evaluation import EvalOptions
from ebft.config.settings import Parser
from ebft.errors import ConfigError, DataError, nearest
from ebft.evaluate import eval_command, tables
from ebft.evaluate.scoring import MEMORY_MIB, TIMEOUT, Sample, outcomes_file_of, program_limits, score_samples
from ebft.evaluate.tasks import problem_sets
from ebft.evaluate.translation_scores import TranslationScoring, score_translations
from ebft.problems import translation
from ebft.problems.catalog import BENCHMARKS, load_problems
from ebft.problems.multipl_e import language_code
from ebft.problems.problem import Problem, read_records
from ebft.runtime.files import locked, read_json, write_json, write_jsonl
from ebft.runtime.messages import print_error, print_table
from ebft.sandbox.box import Sandbox
from ebft.version import __version__

logger = logging.getLogger(__name__)

TASKS = (*BENCHMARKS, "translation")
OF_FOLDERS = ("task", "problems", "workers", "unsafe_exec")  # their other settings are those of the evaluation


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "task", metavar="TASK", help=f"{', '.join(TASKS)}; or a folder of `ebft eval --no-score`, or of a study of them"
    )
    add("--problems", help="JSONL (or .jsonl.gz) in the dataset's own fields, or a hub name")
    add("--samples", help="JSONL with task_id (or name) and completion; several per task give pass@k")
    add("--output", help="results as JSON; FILE.samples.jsonl beside it has each sample's outcome")
    add("--workers", type=int, help="programs at a time [the number of cores]")
    add("--timeout", type=float, default=TIMEOUT, help="seconds for each program [10]; compiling has its own limit")
    add("--memory", type=int, default=MEMORY_MIB, help="MiB for each program [1024]")
    add("--k", default="1,4,16", help="of code: which pass@k to report, where there are enough samples [1,4,16]")
    add("--language", help="of multipl-e: only problems in this language")
    add("--unsafe-exec", action="store_true", help="run programs without a sandbox, with your own rights")
    add("--source-field", help="of translation: field of the source, such as de [src, source]")
    add("--target-field", help="of translation: field of the reference(s), such as en [ref, refs]")
    add("--target-language", default="", help="of translation: code for BLEU's tokenizer, such as zh")
    add("--bleu-tokenize", help="of translation: sacrebleu's tokenizer")
    add("--comet-model", help="of translation: name or path of a COMET model")
    add("--comet-python", help="of translation: Python of an environment with unbabel-comet")


def command(arguments: list[str]) -> int:
    parser = Parser("score", "Score completions made elsewhere. The same command resumes where it stopped.")
    add_arguments(parser)
    options = parser.parse_args(arguments)
    if options.task not in TASKS and Path(options.task).expanduser().is_dir():
        for name, value in vars(options).items():
            if name not in OF_FOLDERS and value != parser.get_default(name):
                flag = name.replace("_", "-")
                raise DataError(f"--{flag} is not for a folder: its settings are those of its evaluation")
        rows, errors = score_folder(Path(options.task).expanduser(), options)
        print_table(rows)
        for error in errors:
            print_error(error)
        return 2 if errors else 0
    results = score(options)
    for note in results.get("notes", []):
        logger.warning(note)
    print_table(_table(results))
    print(f"\n{options.output}")
    return 0


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
        write_json(output, results, indent=2)
    return results


def _score_code(options: argparse.Namespace, outcomes_file: Path) -> dict[str, Any]:
    sandbox = Sandbox(options.unsafe_exec, program_limits(options.timeout, options.memory))
    problems = load_problems(options.task, options.problems)
    if options.language:
        wanted = language_code(options.language) if options.task == "multipl-e" else options.language
        problems = [problem for problem in problems if problem.language == wanted]
    samples = read_samples(options.samples, problems)
    ks = sorted({int(k) for k in options.k.split(",")})
    found = score_samples(problems, samples, sandbox, outcomes_file, ks, options.workers)
    found["settings"] |= {name: getattr(options, name) for name in ("problems", "samples", "language")}
    return found


def read_samples(source: str, problems: Sequence[Problem]) -> list[Sample]:
    """Programs in the file's order, each with its problem; `MBPP/11` also stands for 11."""
    several = len({problem.language for problem in problems}) > 1
    by_id = {(problem.task_id, problem.language if several else None): problem for problem in problems}
    counted: Counter[Problem] = Counter()
    samples: list[Sample] = []
    for record in read_records(source):
        name = str(record.row.get("task_id", record.row.get("name")))
        language = record.row.get("language") if several else None
        problem = by_id.get((name, language)) or by_id.get((name.split("/")[-1], language))
        if problem is None:
            hint = f" in {language or 'several languages (add a field language, or choose --language)'}"
            raise DataError(f"{record.where}: there is no problem {name[:100]!r}{hint if several else ''}")
        finish = record.row.get("finish")  # of `ebft eval`'s own files
        finish = finish if isinstance(finish, str) else ""
        samples.append(Sample(problem, counted[problem], record.text("completion"), finish))
        counted[problem] += 1
    return samples


def _score_translation(options: argparse.Namespace, sentences_file: Path) -> dict[str, Any]:
    """Problems without ids are numbered by row, from 1. Several completions of a task give best-of-k."""
    fields = translation.find_fields(options.problems, given=(options.source_field, options.target_field))
    pairs = translation.read_pairs(options.problems, "test", *fields)
    texts: dict[str, list[str]] = {pair.key: [] for pair in pairs}
    for record in read_records(options.samples):
        key = translation.row_id(record)
        if key not in texts:
            raise DataError(f"{record.where} is for the unknown task {key!r}; {options.problems} has {pairs[0].key!r}")
        texts[key].append(record.text("completion"))
    if missing := [key for key, of_pair in texts.items() if not of_pair]:
        raise DataError(
            f"{options.samples} has no sample for {len(missing)} of {len(texts)} tasks, such as {missing[0]}"
        )
    known = fields[1] if fields[1] in translation.LANGUAGE_NAMES else ""
    target = options.target_language or options.target_field or known
    scoring = TranslationScoring(target, options.bleu_tokenize, options.comet_model, options.comet_python)
    found = score_translations(pairs, list(texts.values()), scoring)
    write_jsonl(sentences_file, found.pop("sentences"))
    return {
        **found,
        "counts": {"problems": len(pairs), "samples": sum(map(len, texts.values()))},
        "settings": {"problems": options.problems, "samples": options.samples, **asdict(scoring)},
        "versions": {"ebft": __version__, "sacrebleu": version("sacrebleu")},
    }


def _table(results: Mapping[str, Any]) -> tables.Rows:
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


def score_folder(folder: Path, options: argparse.Namespace) -> tuple[tables.Rows, list[str]]:
    """Scores what is left in all evaluations of the folder: a row for every metric, and why some could not be scored,
    which stops no other."""
    found = {file.parent: read_json(file) or {} for file in sorted(folder.rglob(tables.RESULTS_FILE))}
    found = {place: results for place, results in found.items() if "tasks" in results}
    if not found:
        raise DataError(f"{folder} holds no results of `ebft eval`; score a file with `ebft score TASK --samples FILE`")
    left = {
        place: [task for task, entry in results["tasks"].items() if not tables.is_scored(entry)]
        for place, results in found.items()
    }
    problems = _problems(options.problems, {task for tasks in left.values() for task in tasks})
    errors = []
    for place, tasks in left.items():
        if tasks:
            with locked(place / eval_command.LOCK_FILE):
                for task in tasks:
                    logger.info(f"{place}: {task}")
                    try:
                        _score(place, found[place], task, problems.get(task), options)
                    except (DataError, ConfigError) as error:  # the latter: no sandbox
                        errors.append(f"{place}, {task}: {error}")
                _present({place: found[place]}, place)
    if not any(left.values()):
        logger.info("nothing to score: all of it is scored already")
    elif len(found) > 1 and all(place.parent == folder for place in found):  # of several models, compared
        _present(found, folder)
    rows: tables.Rows = [("evaluation", "task", "metric", "value")]
    for name, results in zip(tables.labels([*map(str, found)]), found.values(), strict=True):
        rows += [(name, *row) for row in tables.table({name: results}, {})[1:]]
    return rows, errors


def _problems(given: str | None, tasks: set[str]) -> dict[str, str]:
    """By task, where its problems are now: `FILE`, or `humaneval=FILE,mbpp=FILE`."""
    if given is None or given.partition("=")[0] in BENCHMARKS:
        return dict(pair.split("=", 1) for pair in (given or "").split(",") if "=" in pair)
    if len(tasks) > 1:
        named = ",".join(f"{task}=FILE" for task in sorted(tasks))
        raise DataError(f"--problems {given} is for one task, and there are several to score: use --problems {named}")
    return dict.fromkeys(tasks, given)


def _score(place: Path, results: tables.Results, task: str, problems: str | None, options: argparse.Namespace) -> None:
    from ebft.evaluate.run_task import scored  # brings in torch

    entry = results["tasks"][task]
    asked = {**entry["settings"], "tasks": [task], "workers": options.workers, "unsafe_exec": options.unsafe_exec}
    if problems is not None:
        asked[task.replace("-", "_")] = problems
    chosen = EvalOptions.from_values({name: value for name, value in asked.items() if value is not None})
    try:
        sets = problem_sets(task, chosen)
    except DataError as error:
        raise DataError(f"{error}; say where its problems are: --problems {task}=FILE") from None
    kept = {name: entry[name] for name in ("settings", "mark")}
    eval_command.record(place, results, task, scored(chosen, place, sets) | kept)


def _present(found: Mapping[Path, tables.Results], folder: Path) -> None:
    """The tables of `ebft eval`, of several models in the order in which they were given."""

    def order(place: Path) -> int:
        given, model = found[place].get("command", []), found[place]["model"]
        return given.index(model) if model in given else 0

    places = sorted(found, key=order)
    names = tables.labels([found[place]["model"] for place in places])
    results = {name: found[place] for name, place in zip(names, places, strict=True)}
    eval_command.present(results, dict(zip(names, places, strict=True)), folder)
