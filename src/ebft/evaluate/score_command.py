"""`ebft score TASK --samples FILE`: completions made elsewhere, scored without a model. `ebft score FOLDER`: what
`ebft eval --no-score` has generated, in one evaluation or in many, such as a study's, scored where there is a sandbox,
with the same results as if it had been scored at once."""

from __future__ import annotations

import argparse
import logging
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ebft.config import evaluation
from ebft.config.evaluation import EvalOptions
from ebft.config.settings import Parser
from ebft.errors import ConfigError, DataError, nearest
from ebft.evaluate import eval_command, tables
from ebft.evaluate.scoring import K, Row, Scored, shares_of_kinds
from ebft.evaluate.tasks import MEMORY_MIB, ProblemSet, problem_sets
from ebft.problems import translation
from ebft.problems.catalog import BENCHMARKS, load_problems
from ebft.problems.multipl_e import language_code
from ebft.problems.problem import read_records
from ebft.runtime.files import locked, read_json, write_json
from ebft.runtime.messages import print_error, print_table

logger = logging.getLogger(__name__)

TASKS = (*BENCHMARKS, "translation")
# Options of `ebft eval` that are flags here, too; of a folder, the last two: the others are those of the evaluation.
OF_EVAL = {"source_field", "target_field", "target_language", "bleu_tokenize", "comet_model", "comet_python"}
OF_EVAL |= {"timeout", "workers", "unsafe_exec"}


def command(arguments: list[str]) -> int:
    parser = Parser("score", "Score completions made elsewhere. The same command resumes where it stopped.")
    add = parser.add_argument
    add("task", help=f"{', '.join(TASKS)}; or a folder of `ebft eval --no-score`, or of a study of them")
    add("--problems", help="JSONL (or .jsonl.gz) in the dataset's own fields, or a hub name; of a folder: TASK=FILE")
    add("--samples", help="JSONL with task_id (or name) and completion; several per task give pass@k")
    add("--output", help="results as JSON; FILE.samples.jsonl beside it has each sample's outcome")
    add("--memory", type=int, default=MEMORY_MIB, help="MiB for each program [1024]")
    add("--k", default=",".join(map(str, K)), help="which pass@k to report, where there are enough samples [1,4,16]")
    add("--language", help="of multipl-e: only problems in this language")
    parser.add_settings("As in `ebft eval`", [(name, f) for name, f, _ in evaluation.options() if name in OF_EVAL])
    options = parser.parse_args(arguments)
    folder = Path(options.task).expanduser()
    if options.task in TASKS:
        print_table(tables.table({"value": {"tasks": {options.task: score(options)}}}, {}))
        return 0
    if not folder.is_dir():
        raise DataError(f"unknown task {options.task!r}, and no such folder{nearest(options.task, TASKS)}")
    if odd := {*options.settings} - {"workers", "unsafe_exec"}:
        raise DataError(f"--{min(odd).replace('_', '-')} is not for a folder: its settings are those of its evaluation")
    errors = score_folder(folder, options.problems or "", options.settings)
    for error in errors:
        print_error(error)
    return 2 if errors else 0


# ---- samples made elsewhere ------------------------------------------------------------------------------------------


def score(options: argparse.Namespace) -> Scored:
    """Scores as the command line says, writes the results and returns them."""
    if not (options.problems and options.samples and options.output):
        raise DataError(f"`ebft score {options.task}` needs --problems FILE, --samples FILE and --output FILE")
    output = Path(options.output).expanduser()
    details = output.with_name(f"{output.stem}.samples.jsonl")
    given = {Path(name).expanduser().resolve() for name in (options.problems, options.samples)}
    if {output.resolve(), details.resolve()} & given:
        raise DataError(f"--output {output} would overwrite problems or samples; choose another name")
    with locked(output.with_name(f"{output.name}.lock"), output):
        [problems] = problem_sets(options.task, _as_evaluated(options), options.memory)
        if problems.skipped:
            raise DataError(problems.skipped)
        samples = read_samples(options.samples, problems)
        found = problems.score(samples, details, [int(k) for k in options.k.split(",")])
        results = {"task": options.task, "notes": [], **found}
        results["metrics"] |= shares_of_kinds(samples, problems.language)
        results["settings"] |= {name: getattr(options, name) for name in ("problems", "samples", "language")}
        write_json(output, results, indent=2)
    for note in results["notes"]:
        logger.warning(note)
    return results


def _as_evaluated(options: argparse.Namespace) -> EvalOptions:
    task, problems, given = options.task, options.problems, options.settings
    asked = {"tasks": [task], task.replace("-", "_"): problems}
    if task == "translation":  # prompts, which name both languages, are not needed
        fields = translation.find_fields(problems, given=(given.get("source_field"), given.get("target_field")))
        target = fields[1] if fields[1] in translation.LANGUAGE_NAMES else "unknown"
        asked = {"source_language": "unknown", "target_language": target, "translation_data": problems}
    if task == "multipl-e":
        every = sorted({problem.language for problem in load_problems(task, problems)})
        asked["languages"] = [language_code(options.language)] if options.language else every
        if len(asked["languages"]) > 1:
            raise DataError(f"{problems} has several languages; choose one with --language: {', '.join(every)}")
    return EvalOptions.from_values({**asked, **given})


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


# ---- folders of `ebft eval --no-score` -------------------------------------------------------------------------------


def score_folder(folder: Path, problems: str, settings: Mapping[str, Any]) -> list[str]:
    """Scores what is left in all evaluations of the folder; returns why some could not be, which stops no other.

    Args:
        problems: where they are now, if not where they were: `humaneval=FILE,mbpp=FILE`.
        settings: the number of workers, and whether to do without a sandbox.
    """
    moved = {task.replace("-", "_"): file for task, _, file in (pair.partition("=") for pair in problems.split(","))}
    every = {file.parent: read_json(file) or {} for file in sorted(folder.rglob(tables.RESULTS_FILE))}
    found = {place: results for place, results in every.items() if "tasks" in results}
    if not found:
        raise DataError(f"{folder} holds no results of `ebft eval`; score a file with `ebft score TASK --samples FILE`")
    errors = []
    for place, results in found.items():
        with locked(place / eval_command.LOCK_FILE):
            for task, entry in [(t, entry) for t, entry in results["tasks"].items() if not tables.is_scored(entry)]:
                asked = {name: value for name, value in entry["settings"].items() if value is not None}
                asked |= {"tasks": [task], **settings, **{name: file for name, file in moved.items() if name in asked}}
                try:
                    _score(place, results, task, EvalOptions.from_values(asked))
                except (DataError, ConfigError) as error:  # the latter: no sandbox
                    errors.append(f"{place}, {task}: {error} (problems that have moved: --problems {task}=FILE)")
            logger.info(f"{place}:")
            print_table(_present({place: results}, place))
    if len(found) > 1 and all(place.parent == folder for place in found):  # of several models, compared
        _present(found, folder)
    return errors


def _score(place: Path, results: tables.Results, task: str, options: EvalOptions) -> None:
    from ebft.evaluate.run_task import scored  # brings in torch

    kept = {name: results["tasks"][task][name] for name in ("settings", "mark")}
    eval_command.record(place, results, task, scored(options, place, problem_sets(task, options)) | kept)


def _present(found: Mapping[Path, tables.Results], folder: Path) -> tables.Rows:
    """The table of `ebft eval`, of several models in the order in which they were given."""
    given = next(iter(found.values())).get("command", [])
    places = sorted(found, key=lambda place: given.index(model) if (model := found[place]["model"]) in given else 0)
    names = tables.labels([found[place]["model"] for place in places])
    results = {name: found[place] for name, place in zip(names, places, strict=True)}
    return eval_command.present(results, dict(zip(names, places, strict=True)), folder)
