"""What each task asks a model and how answers are scored; running one, from the start or from where it was stopped.

Calibration measures sequences (`calibration.py`). The others generate completions for each set of problems, greedily
and by sampling, and the set's own `score` turns them into metrics, at once or where there is a sandbox (`scored`).
What loads torch is imported where it is used: `ebft score` of a file has no model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from ebft.config.evaluation import EvalOptions
from ebft.config.settings import Values
from ebft.data.rows import check_source
from ebft.errors import ConfigError, DataError
from ebft.evaluate import scoring
from ebft.evaluate.scoring import Results, ResumableRecords, Row
from ebft.evaluate.translation_scores import TranslationScoring, score_translations
from ebft.problems import translation
from ebft.problems.catalog import load_problems
from ebft.problems.problem import Question
from ebft.runtime.files import read_jsonl, write_jsonl
from ebft.runtime.messages import progress
from ebft.sandbox.box import Limits, Sandbox

if TYPE_CHECKING:
    from ebft.evaluate.generation import GenerationSettings
    from ebft.evaluate.subject import Subject

# Which options a task's numbers depend on: its groups' and the seed and limit, but not how fast it is made.
_GROUPS = {"calibration": ("calibration",), "translation": ("generation", "translation")}
_SOURCES = {"humaneval": ["humaneval"], "mbpp": ["mbpp"], "multipl-e": ["multipl_e", "languages"]}
_NOT_OF_NUMBERS = ("workers", "calibration_batch_size", "score")  # what is scored later has the same scores
TIMEOUT, MEMORY_MIB = 10.0, 1024  # of a program
NOT_SCORED = "not scored yet; run `ebft score` on its folder, where there is a sandbox"


@dataclass(frozen=True)
class ProblemSet:
    name: str  # begins the names of its files
    keys: Sequence[str]  # one for each problem
    asked: Mapping[str, Sequence[Question]]  # by prompt style, raw and chat
    max_new_tokens: int  # the default for its completions
    score: Callable[[Sequence[Row], Path, Sequence[int]], Results]  # of completions, for these k; details to the file
    skipped: str | None = None  # why its answers cannot be scored on this machine
    language: str | None = None  # of answers that are programs

    def scores_file(self, completions: Path) -> Path:
        return completions.with_suffix(".scores.jsonl") if self.language is None else scoring.outcomes_file(completions)


def problem_sets(task: str, options: EvalOptions, memory_mib: int = MEMORY_MIB) -> list[ProblemSet]:
    """The problems of a task: of MultiPL-E a set for each language. Read first, so that an error in them shows before
    any model is loaded."""
    if task in ("calibration", "translation") and getattr(options, f"{task}_data") is None:
        raise ConfigError(f"the task {task} needs --{task}-data: a file, a folder, a hub name, or a built-in")
    if task == "calibration":
        check_source(options.calibration_data or "")
        return []
    if task == "translation":
        return [_translation_set(options)]
    if task == "multipl-e":
        sources = [(_of_language(options.multipl_e, language), language) for language in options.languages]
        return [_code_set(task, source, language, options, memory_mib) for source, language in sources]
    return [_code_set(task, getattr(options, task), None, options, memory_mib)]


def _of_language(source: str, language: str) -> str:
    """The file of a language in a folder, or its configuration on the hub; a file is taken as it is."""
    path = Path(source).expanduser()
    if path.is_dir():
        return str(path / f"humaneval-{language}.jsonl")
    is_file = path.is_file() or ":" in source or path.suffix or source.startswith((".", "/", "~"))
    return source if is_file else f"{source}:humaneval-{language}"


def _code_set(task: str, source: str, language: str | None, options: EvalOptions, memory_mib: int) -> ProblemSet:
    sandbox = Sandbox(options.unsafe_exec, Limits(options.timeout or TIMEOUT, memory_mib))
    problems = [problem for problem in load_problems(task, source) if language in (None, problem.language)]
    problems = problems[: options.limit]
    if not problems:
        raise DataError(f"{source}: no problems" + ("" if language is None else f" in {language}"))
    skipped = problems[0].unavailable() if options.score else None
    if options.score and skipped is None:
        sandbox.check()  # before hours of generation, not after
    by_key = {problem.task_id: problem for problem in problems}

    def score(rows: Sequence[Row], outcomes: Path, ks: Sequence[int]) -> Results:
        return scoring.score_programs(by_key, rows, sandbox, outcomes, ks, options.workers)

    asked = {"raw": [problem.raw for problem in problems], "chat": [problem.chat for problem in problems]}
    name = task if language is None else f"{task}-{language}"
    return ProblemSet(name, [*by_key], asked, 512, score, skipped, problems[0].language)


def _translation_set(options: EvalOptions) -> ProblemSet:
    data, split = options.translation_data or "", options.translation_split
    fields = translation.find_fields(data, split, (options.source_field, options.target_field))
    source = translation.language_name(options.source_language, fields[0], "--source-language")
    target = translation.language_name(options.target_language, fields[1], "--target-language")
    pairs = translation.read_pairs(data, split, *fields, options.limit)
    scoring = TranslationScoring(target, options.bleu_tokenize, options.comet_model, options.comet_python)
    prompts = translation.prompts(pairs, source, target, options.prompt_template or translation.TEMPLATE)

    def score(rows: Sequence[Row], sentences: Path, ks: Sequence[int]) -> Results:
        texts: dict[str, list[str]] = {pair.key: [] for pair in pairs}
        for row in rows:
            texts[row["task_id"]].append(row["completion"])
        if missing := [key for key, of_pair in texts.items() if not of_pair]:
            raise DataError(f"there is no sample for {len(missing)} of {len(texts)} tasks, such as {missing[0]}")
        found = score_translations(pairs, [*texts.values()], scoring, ks)
        write_jsonl(sentences, found.pop("sentences"))
        return found | {"counts": {"problems": len(pairs), "samples": len(rows)}, "settings": asdict(scoring)}

    asked = {"raw": [Question(prompt, translation.STOP) for prompt in prompts], "chat": [*map(Question, prompts)]}
    return ProblemSet("translation", [pair.key for pair in pairs], asked, 256, score)


def task_settings(task: str, options: EvalOptions) -> Values:
    left_out = {*_NOT_OF_NUMBERS, *(n for other, names in _SOURCES.items() if other != task for n in names)}
    left_out |= {"prompt_style"} if options.prompt_style == "auto" else set()  # not decided yet
    found = options.values(*_GROUPS.get(task, ("generation", "code")))
    about = {"seed": options.seed, "limit": options.limit}
    return about | {name: value for name, value in found.items() if name not in left_out}


# ---- running a task --------------------------------------------------------------------------------------------------


def run_task(
    task: str, options: EvalOptions, subject: Subject, folder: Path, sets: Sequence[ProblemSet] = ()
) -> Results:
    """One task, from the start or from where it was stopped. `sets` are its problems, from `problem_sets`."""
    if task == "calibration":
        from ebft.evaluate.calibration import run_calibration

        found = run_calibration(options, subject, folder)
    else:
        if options.prompt_style == "auto":
            chats = getattr(subject.tokenizer, "chat_template", None) is not None
            options = replace(options, prompt_style="chat" if chats else "raw")
        for problems in sets:
            if problems.skipped is None:
                _generate(problems, options, subject, folder)
        found = scored(options, folder, sets)
    return found | {"settings": task_settings(task, options)}


def _asked(problems: ProblemSet, options: EvalOptions) -> list[dict[str, str]]:
    asked = zip(problems.keys, problems.asked[options.prompt_style], strict=True)
    return [{"task_id": key, "prompt": question.prompt} for key, question in asked]


def _decodings(problems: ProblemSet, options: EvalOptions) -> dict[str, GenerationSettings]:
    from ebft.evaluate.generation import GenerationSettings

    questions = problems.asked[options.prompt_style]
    greedy = GenerationSettings(
        max_new_tokens=options.max_new_tokens or problems.max_new_tokens,
        stop=tuple(dict.fromkeys(stop for question in questions for stop in question.stop)),
        prompt_style="chat" if options.prompt_style == "chat" else "raw",
        system_prompt=options.system_prompt,
        answer_start=questions[0].answer_start,
        seed=options.seed,
        too_long=options.too_long,
    )
    sampled = replace(greedy, temperature=options.temperature, top_p=options.top_p, samples=options.samples or 1)
    return ({"greedy": greedy} if options.greedy else {}) | ({"samples": sampled} if options.samples else {})


def _generate(problems: ProblemSet, options: EvalOptions, subject: Subject, folder: Path) -> None:
    """Makes the completions that are not on disk yet, the greedy ones beside the samples."""
    from ebft.evaluate.generation import GREEDY

    prompts, keys = [question.prompt for question in problems.asked[options.prompt_style]], problems.keys
    decodings, records, wanted = _decodings(problems, options), dict[str, ResumableRecords](), list[tuple[int, int]]()
    asked = hashlib.sha256(json.dumps([keys, prompts]).encode()).hexdigest()[:16]
    made_with = {"model": subject.identity, "backend": options.backend, "problems": asked}
    for decoding, settings in decodings.items():
        name, made = f"{problems.name}.{decoding}", asdict(settings) | made_with
        records[decoding] = ResumableRecords(folder, name, made, options)
        done = {(row["task_id"], row["sample"]) for row in records[decoding].rows}
        for place, sample in product(range(len(keys)), range(settings.samples)):
            if (keys[place], sample) not in done:
                wanted.append((place, GREEDY if decoding == "greedy" else sample))
    write_jsonl(folder / f"{problems.name}.prompts.jsonl", _asked(problems, options))
    if not wanted:
        return
    total, settings = len(keys) * sum(s.samples for s in decodings.values()), [*decodings.values()][-1]
    with progress(problems.name, total, total - len(wanted)) as advance:
        for batch in subject.generator.stream(prompts, settings, wanted, keys):
            for place, sample, one in batch:
                row = {"task_id": keys[place], "sample": max(sample, 0), "completion": one.text}
                row |= {"finish": one.finish, "tokens": one.tokens, "prompt_truncated": one.prompt_truncated}
                records["greedy" if sample == GREEDY else "samples"].append([row])
            advance(len(batch))


def scored(options: EvalOptions, folder: Path, sets: Sequence[ProblemSet]) -> Results:
    """Metrics of the completions that are in the folder: no model is needed. A set that cannot be scored has none."""
    parts = [_scored_set(problems, options, folder) for problems in sets]
    if len(parts) == 1:
        return parts[0]
    counted = [part for part in parts if part["metrics"]]
    return {
        "metrics": scoring.over_sets(counted),
        "problems": sum(part["problems"] for part in counted),
        "parts": [*counted, *(part for part in parts if not part["metrics"])],
        "notes": [note for part in parts for note in part["notes"]],
    }


def _scored_set(problems: ProblemSet, options: EvalOptions, folder: Path) -> Results:
    name, language = problems.name, problems.language
    part: Results = {"name": name, "metrics": {}, "problems": len(problems.keys), "notes": []}
    part |= {"language": language} if language else {}
    if problems.skipped is not None:  # nothing could be run, so nothing is generated either
        return part | {"skipped": problems.skipped, "notes": [f"{name} is skipped: {problems.skipped}"]}
    if read_jsonl(file := folder / f"{name}.prompts.jsonl") != _asked(problems, options):
        raise DataError(f"{file} has other prompts than the problems: they are not those the model was given")
    for decoding, settings in _decodings(problems, options).items():
        file, prefix = folder / f"{name}.{decoding}.jsonl", "greedy_" if decoding == "greedy" else ""
        found = {(row["task_id"], row["sample"]): row for row in read_jsonl(file)}
        every = list(product(problems.keys, range(settings.samples)))
        if found.keys() != {*every}:
            wanted = f"{settings.samples} of each of the {len(problems.keys)} problems; run the same `ebft eval` first"
            raise DataError(f"{file} holds {len(found)} completions, not {wanted}")
        rows = [found[key] for key in every]
        metrics = scoring.shares_of_kinds(rows, language)
        if options.score or not language:
            details = problems.score(rows, problems.scores_file(file), scoring.K)
            metrics = details.pop("metrics") | metrics
            part["notes"] += [f"{name}, {decoding}: {note}" for note in details.pop("notes", [])]
            part[decoding] = details
        part["metrics"] |= {f"{prefix}{metric}": value for metric, value in metrics.items()}
    if language and not options.score:
        part |= {"skipped": NOT_SCORED, "unscored": True, "notes": [*part["notes"], f"{name} is {NOT_SCORED}"]}
    return part
