"""`ebft eval`: tasks on checkpoints, with results that can be resumed and compared. `ebft score FOLDER`: what
`ebft eval --no-score` has generated, in one evaluation or in many, such as a study's, scored where there is a sandbox,
with the same results as if it had been scored at once. `ebft score TASK --samples FILE`: completions made elsewhere."""

from __future__ import annotations

import argparse
import logging
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from ebft.config import evaluation
from ebft.config.evaluation import EvalOptions
from ebft.config.settings import Parser, Values
from ebft.errors import ConfigError, DataError, SandboxError, nearest
from ebft.evaluate import tables
from ebft.evaluate.scoring import K, Results, Row, shares_of_kinds
from ebft.evaluate.tasks import MEMORY_MIB, ProblemSet, problem_sets, run_task, scored
from ebft.problems import translation
from ebft.problems.catalog import BENCHMARKS, load_problems
from ebft.problems.multipl_e import language_code
from ebft.problems.problem import read_records
from ebft.runtime.files import locked, read_json, write_json, write_text
from ebft.runtime.machine import describe
from ebft.runtime.messages import print_error, print_table, quiet_libraries

logger = logging.getLogger(__name__)

TABLE_FILE, LOCK_FILE = "results.md", "eval.lock"  # the lock: while a process writes here
TASKS = (*BENCHMARKS, "translation")  # of `ebft score`, and options of `ebft eval` that are flags there, too
OF_FOLDERS = {"workers", "unsafe_exec"}  # the others are those of the evaluation
OF_SAMPLES = {"timeout", "source_field", "target_field", "target_language"}
OF_SAMPLES |= {"bleu_tokenize", "comet_model", "comet_python"}


def evaluate(arguments: list[str]) -> int:
    usage = "--model M --tasks calibration,humaneval,... --output DIR [options]"
    parser = Parser("eval", "Evaluate checkpoints. The same command resumes where it stopped.", usage)
    for group in evaluation.GROUPS.values():
        parser.add_settings(group.capitalize(), [(name, f) for name, f, _ in evaluation.options(group)])
    options = EvalOptions.from_values(parser.parse_args(arguments).settings)
    for name in ("output",) if options.compare else ("output", "model", "tasks"):
        if not getattr(options, name):
            raise ConfigError(f"no {name}: give --{name}")
    output = Path(options.output).expanduser()
    if options.compare:
        places = [Path(place).expanduser() for place in options.compare]
        folders = dict(zip(tables.labels(options.compare), places, strict=True))
        found = {label: tables.read_results(folder) for label, folder in folders.items()}
        with locked(output / LOCK_FILE):
            print_table(present(found, folders, output))
    else:
        print_table(_evaluate_models(options, output, ["ebft", "eval", *arguments]))
    print(f"\n{output}/{TABLE_FILE}")
    return 0


def _evaluate_models(options: EvalOptions, output: Path, command: Sequence[str]) -> tables.Rows:
    from ebft.evaluate.subject import CheckpointSubject

    quiet_libraries()
    labels, results = tables.labels(options.model), dict[str, Results]()
    # What is wrong shows before a model is loaded or a folder made.
    subjects = {label: CheckpointSubject(name, options) for label, name in zip(labels, options.model, strict=True)}
    sets: dict[str, list[ProblemSet]] = {task: problem_sets(task, options) for task in options.tasks}
    several = {label: output / re.sub(r"[^\w.-]+", "-", label).strip("-.") for label in labels}
    folders = several if len(labels) > 1 else {labels[0]: output}
    with ExitStack() as held:
        for place in sorted({output, *folders.values()}):
            held.enter_context(locked(place / LOCK_FILE))
        for label, folder in folders.items():
            logger.info(f"{label} -> {folder}")
            subject = subjects.pop(label)  # one model at a time is in memory
            kept = (folder / tables.RESULTS_FILE).exists() and not options.overwrite
            before = tables.read_results(folder)["tasks"] if kept else {}  # an error if they are a run's
            about = {"seed": options.seed, "versions": describe(), "command": list(command)}
            results[label] = {**subject.describe(), **about, "tasks": before}
            for task in options.tasks:
                _record(folder, results[label], task, run_task(task, options, subject, folder, sets[task]))
        return present(results, folders, output)


def _record(folder: Path, results: Results, task: str, entry: Results) -> None:
    """Written after every task, so that a stopped run keeps what it has."""
    for note in entry["notes"]:
        logger.warning(f"{task}: {note}")
    results["tasks"][task] = entry
    write_json(folder / tables.RESULTS_FILE, results)


def present(results: dict[str, Results], folders: dict[str, Path], output: Path) -> tables.Rows:
    """Writes the table and the pictures; returns the table."""
    tables.check_same_space(results)
    moved = tables.against_first(results, folders)
    write_text(output / TABLE_FILE, tables.markdown(results, moved))
    tables.draw(results, output)
    return tables.table(results, moved)


# ---- ebft score ------------------------------------------------------------------------------------------------------


def score(arguments: list[str]) -> int:
    parser = Parser("score", "Score completions made elsewhere. The same command resumes where it stopped.")
    add = parser.add_argument
    add("task", help=f"{', '.join(TASKS)}; or a folder of `ebft eval --no-score`, or of a study of them")
    add("--problems", help="JSONL (or .jsonl.gz) in the dataset's own fields, or a hub name; of a folder: TASK=FILE")
    add("--samples", help="JSONL with task_id (or name) and completion; several per task give pass@k")
    add("--output", help="results as JSON; FILE.samples.jsonl beside it has each sample's outcome")
    add("--memory", type=int, default=MEMORY_MIB, help="MiB for each program [1024]")
    add("--k", default=",".join(map(str, K)), help="which pass@k to report, where there are enough samples [1,4,16]")
    add("--language", help="of multipl-e: only problems in this language")
    ours = OF_FOLDERS | OF_SAMPLES
    parser.add_settings("As in `ebft eval`", [(name, f) for name, f, _ in evaluation.options() if name in ours])
    options = parser.parse_args(arguments)
    if options.task in TASKS:
        print_table(tables.table({"value": {"tasks": {options.task: score_samples(options)}}}, {}))
        return 0
    if not (folder := Path(options.task).expanduser()).is_dir():
        raise DataError(f"unknown task {options.task!r}, and no such folder{nearest(options.task, TASKS)}")
    if odd := {*options.settings} - OF_FOLDERS:
        raise DataError(f"--{min(odd).replace('_', '-')} is not for a folder: its settings are those of its evaluation")
    return score_folder(folder, options.problems or "", options.settings)


def score_samples(options: argparse.Namespace) -> Results:
    """Completions made elsewhere; writes the results and returns them."""
    task, source, given = options.task, options.problems, options.settings
    if not (source and options.samples and options.output):
        raise DataError(f"`ebft score {task}` needs --problems FILE, --samples FILE and --output FILE")
    output = Path(options.output).expanduser()
    details = output.with_name(f"{output.stem}.samples.jsonl")
    if {output.resolve(), details.resolve()} & {Path(n).expanduser().resolve() for n in (source, options.samples)}:
        raise DataError(f"--output {output} would overwrite problems or samples; choose another name")
    asked = {"tasks": [task], task.replace("-", "_"): source}
    if task == "translation":  # prompts, which name both languages, are not needed
        _, target = translation.find_fields(source, given=(given.get("source_field"), given.get("target_field")))
        target = target if target in translation.LANGUAGE_NAMES else "unknown"
        asked = {"source_language": "unknown", "target_language": target, "translation_data": source}
    if task == "multipl-e":
        every = sorted({problem.language for problem in load_problems(task, source)})
        asked["languages"] = [language_code(options.language)] if options.language else every
        if len(asked["languages"]) > 1:
            raise DataError(f"{source} has several languages; choose one with --language: {', '.join(every)}")
    with locked(output.with_name(f"{output.name}.lock")):
        [problems] = problem_sets(task, EvalOptions.from_values({**asked, **given}), options.memory)
        if problems.skipped:
            raise DataError(problems.skipped)
        samples = read_samples(options.samples, problems)
        results = {"task": task, "notes": []} | problems.score(samples, details, [int(k) for k in options.k.split(",")])
        results["metrics"] |= shares_of_kinds(samples, problems.language)
        results["settings"] |= {name: getattr(options, name) for name in ("problems", "samples", "language")}
        write_json(output, results)
    for note in results["notes"]:
        logger.warning(note)
    return results


def read_samples(source: str, problems: ProblemSet) -> list[Row]:
    """Completions in the file's order; `MBPP/11` also stands for 11. Those of MultiPL-E's other languages are left."""
    known, counted, found = {*problems.keys}, Counter[str](), list[Row]()
    for record in read_records(source):
        if record.row.get("language") in {*evaluation.LANGUAGES} - {problems.language}:
            continue
        name = str(translation.row_id(record))
        key = name if name in known else name.split("/")[-1]
        if key not in known:
            raise DataError(f"{record.where}: there is no problem {name[:100]!r}, but {problems.keys[0]!r}")
        row = {"task_id": key, "sample": counted[key], "completion": record.text("completion")}
        found.append(row | {"finish": record.row.get("finish")})  # only `ebft eval`'s own files say
        counted[key] += 1
    return found


def score_folder(folder: Path, problems: str, settings: Values) -> int:
    """Scores what is left in all evaluations of the folder, and says which could not be, which stops no other.
    problems: where they are now, if not where they were: `humaneval=FILE,mbpp=FILE`."""
    moved = {task.replace("-", "_"): file for task, _, file in (pair.partition("=") for pair in problems.split(","))}
    every = {file.parent: read_json(file) or {} for file in sorted(folder.rglob(tables.RESULTS_FILE))}
    found = {place: results for place, results in every.items() if "tasks" in results}
    if not found:
        raise DataError(f"{folder} holds no results of `ebft eval`; score a file with `ebft score TASK --samples FILE`")
    code = 0
    for place, results in found.items():
        with locked(place / LOCK_FILE):
            for task, entry in results["tasks"].items():
                if tables.is_scored(entry):
                    continue
                asked = {name: value for name, value in entry["settings"].items() if value is not None}
                asked |= {"tasks": [task], **settings, **{name: file for name, file in moved.items() if name in asked}}
                try:
                    options = EvalOptions.from_values(asked)
                    now = scored(options, place, problem_sets(task, options))
                    _record(place, results, task, {**now, "settings": entry["settings"]})
                except (ValueError, SandboxError) as error:
                    print_error(f"{place}, {task}: {error} (problems that have moved: --problems {task}=FILE)")
                    code = 2
            logger.info(f"{place}:")
            [name] = tables.labels([results["model"]])
            print_table(present({name: results}, {name: place}, place))
    return code
