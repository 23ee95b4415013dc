"""What each task asks a model and how answers are scored; and records on disk, so that a task can be resumed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ebft.config.evaluation import EvalOptions
from ebft.data.rows import check_hub, check_place
from ebft.errors import ConfigError, DataError, HubUnreachable, SandboxError
from ebft.evaluate.scoring import MEMORY_MIB, TIMEOUT, K, Sample, outcomes_file_of, program_limits, score_samples
from ebft.evaluate.translation_scores import TranslationScoring, score_translations
from ebft.problems import translation
from ebft.problems.catalog import load_problems
from ebft.runtime.files import read_json, read_jsonl, write_json, write_jsonl
from ebft.sandbox.box import Sandbox

Scored = dict[str, Any]  # {"metrics": {name: {"value", "standard_error", "count"}}, and further details}
CODE_TOKENS, TRANSLATION_TOKENS = 512, 256  # new ones, by default


class Asked(NamedTuple):
    """How the problems are put in one prompt style."""

    prompts: Sequence[str]
    stop: tuple[str, ...] = ()  # strings that end a completion
    answer_start: str = ""  # what the answer in a chat begins with, which is given to the model


@dataclass(frozen=True)
class ProblemSet:
    """
    Args:
        name: the start of the names of its files.
        keys: a key for each problem, unique in the set.
        asked: by prompt style, raw and chat.
        max_new_tokens: the default for its completions.
        score: from the completions of each problem, the file they are in and how each ended to metrics; None: later,
            by `ebft score`.
        skipped: why its answers cannot be scored on this machine; None if they can.
        language: of answers that are programs.
    """

    name: str
    keys: Sequence[str]
    asked: Mapping[str, Asked]
    max_new_tokens: int
    score: Callable[[list[list[str]], Path, list[list[str]]], Scored] | None
    skipped: str | None = None
    language: str | None = None


def problem_sets(task: str, options: EvalOptions) -> list[ProblemSet]:
    """The problems of a task: of MultiPL-E a set for each language. Read first, so that an error in them shows before
    any model is loaded."""
    if task == "calibration":
        if options.calibration_data is None:
            raise ConfigError(
                "the task calibration needs --calibration-data: a file, a folder, a hub name or a built-in"
            )
        check_place(options.calibration_data)
        check_hub(options.calibration_data)
        return []
    if task == "translation":
        return [_translation_set(options)]
    if task == "multipl-e":
        sources = [(_of_language(options.multipl_e, language), language) for language in options.languages]
        return [_code_set(task, source, language, options) for source, language in sources]
    return [_code_set(task, getattr(options, task), None, options)]


def _of_language(source: str, language: str) -> str:
    """The file of a language in a folder, or its configuration on the hub; a file is taken as it is."""
    path = Path(source).expanduser()
    if path.is_dir():
        file = path / f"humaneval-{language}.jsonl"
        if not file.is_file():
            raise DataError(f"{file}: no such file; leave {language} out of --languages, or add it")
        return str(file)
    if path.is_file() or ":" in source or path.suffix or source.startswith((".", "/", "~")):
        return source
    return f"{source}:humaneval-{language}"


def _code_set(task: str, source: str, language: str | None, options: EvalOptions) -> ProblemSet:
    sandbox = Sandbox(options.unsafe_exec, program_limits(options.timeout or TIMEOUT, MEMORY_MIB))
    try:
        problems = load_problems(task, source)
    except HubUnreachable as error:
        raise DataError(f"{error} (--{task} FILE)") from None
    problems = [problem for problem in problems if language in (None, problem.language)][: options.limit]
    if not problems:
        raise DataError(f"{source}: no problems" + ("" if language is None else f" in {language}"))
    skipped = problems[0].unavailable() if options.score else None
    if options.score and skipped is None:
        try:  # before hours of generation, not after
            sandbox.check()
        except SandboxError as error:
            raise ConfigError(str(error)) from None

    def score(texts: list[list[str]], file: Path, finishes: list[list[str]]) -> Scored:
        """Writes `<file>.scores.json`, as `ebft score` would, and the outcome of every program beside it."""
        samples = [
            Sample(problem, number, text, finish)
            for problem, of_problem, ends in zip(problems, texts, finishes, strict=True)
            for number, (text, finish) in enumerate(zip(of_problem, ends, strict=True))
        ]
        output = file.with_suffix(".scores.json")
        ks = [k for k in K if k <= len(texts[0])]
        found = score_samples(problems, samples, sandbox, outcomes_file_of(output), ks, options.workers)
        found["settings"] |= {"problems": source, "samples": str(file), "language": language}
        write_json(output, {"task": task, **found}, indent=2)
        return {name: found[name] for name in ("metrics", "counts", "statuses", "notes", "versions")}

    asked = {}
    for style in ("raw", "chat"):
        stop = tuple(dict.fromkeys(stop for problem in problems for stop in problem.stop_strings(style)))
        start = problems[0].answer_start if style == "chat" else ""
        asked[style] = Asked([problem.prompt(style) for problem in problems], stop, start)
    name = task if language is None else f"{task}-{language}"
    keys, spoken = [problem.task_id for problem in problems], problems[0].language
    return ProblemSet(name, keys, asked, CODE_TOKENS, score if options.score else None, skipped, spoken)


def _translation_set(options: EvalOptions) -> ProblemSet:
    data, split = options.translation_data, options.translation_split
    if data is None:
        raise ConfigError("the task translation needs --translation-data: a file, a folder or a hub name")
    fields = translation.find_fields(data, split, (options.source_field, options.target_field))
    source = translation.language_name(options.source_language, fields[0], "--source-language")
    target = translation.language_name(options.target_language, fields[1], "--target-language")
    pairs = translation.read_pairs(data, split, *fields, options.limit)
    scoring = TranslationScoring(target, options.bleu_tokenize, options.comet_model, options.comet_python)
    prompts = translation.prompts(pairs, source, target, options.prompt_template or translation.TEMPLATE)

    def score(texts: list[list[str]], file: Path, finishes: list[list[str]]) -> Scored:
        found = score_translations(pairs, texts, scoring)
        write_jsonl(file.with_name(f"{file.stem}.scores.jsonl"), found.pop("sentences"))
        return found

    asked = {"raw": Asked(prompts, translation.STOP), "chat": Asked(prompts)}
    return ProblemSet("translation", [pair.key for pair in pairs], asked, TRANSLATION_TOKENS, score)


def fingerprint(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


class ResumableRecords:
    """An append-only JSONL file `<name>.jsonl`, made under the settings in `<name>.settings.json`.

    Resuming with other settings is an error that says what differs, because the file would hold two things under one
    name. Studies, whose options may change, replace such records instead.
    """

    def __init__(
        self, folder: Path, name: str, settings: dict[str, Any], overwrite: bool = False, replace_changed: bool = False
    ) -> None:
        self.file = folder / f"{name}.jsonl"
        settings_file = folder / f"{name}.settings.json"
        settings = json.loads(json.dumps(settings))  # as they will be read back
        folder.mkdir(parents=True, exist_ok=True)
        before = read_json(settings_file)
        if overwrite or (replace_changed and before != settings):
            self.file.unlink(missing_ok=True)
        if self.file.exists() and before != settings:
            differ = [key for key in (before or settings) | settings if (before or {}).get(key) != settings.get(key)]
            raise ConfigError(
                f"{self.file} was made with another {', '.join(differ)}; resume with the same settings, choose another "
                "--output, or use --overwrite to make it again"
            )
        write_json(settings_file, settings)
        self.rows = read_jsonl(self.file)
        if self.file.exists():  # without the line that a killed run was writing
            with self.file.open("r+b") as file:
                file.truncate(file.read().rfind(b"\n") + 1)

    def append(self, rows: Iterable[dict[str, Any]]) -> None:
        rows = list(rows)
        if rows:
            with self.file.open("a", encoding="utf-8") as file:
                file.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
            self.rows += rows
