"""Code problems as sets of prompts for `ebft eval`; reading, running and counting them is `code`'s and `score`'s."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ebft.config.evaluation import EvalOptions
from ebft.errors import ConfigError, DataError
from ebft.evaluate import score_command as scoring
from ebft.problems.code import Problem, load_problems
from ebft.sandbox.isolation import Sandbox, SandboxError
from ebft.tasks.run_task import ProblemSet

MAX_NEW_TOKENS = 512
TIMEOUT, MEMORY_MIB = 10.0, 1024  # `ebft score`'s own
K = (1, 4, 16)


def code_sets(task: str, options: EvalOptions) -> list[ProblemSet]:
    """One set, or for MultiPL-E one for each language."""
    if task == "humaneval":
        sets = [_set(task, task, options.humaneval, None, options)]
    elif task == "mbpp":
        sets = [_set(task, task, options.mbpp, None, options)]
    else:
        sets = [
            _set(task, f"{task}-{language}", _of_language(options.multipl_e, language), language, options)
            for language in options.languages
        ]
    if any(problems.skipped is None for problems in sets):
        try:  # before hours of generation, not after
            Sandbox(unsafe=options.unsafe_exec).check()
        except SandboxError as error:
            raise ConfigError(str(error)) from None
    return sets


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


def _set(task: str, name: str, source: str, language: str | None, options: EvalOptions) -> ProblemSet:
    problems: list[Problem] = load_problems(task, source)
    if language is not None:
        problems = [problem for problem in problems if problem.language == language]
    problems = problems[: options.limit]
    if not problems:
        raise DataError(f"{source}: no problems" + ("" if language is None else f" in {language}"))
    chat = options.prompt_style == "chat"

    def score(texts: list[list[str]], file: Path) -> dict[str, Any]:
        found = scoring.score(
            argparse.Namespace(
                task=task,
                problems=source,
                samples=str(file),
                output=str(file.with_suffix(".scores.json")),
                workers=options.workers,
                timeout=options.timeout or TIMEOUT,
                memory=MEMORY_MIB,
                k=",".join(str(k) for k in K if k <= len(texts[0])),
                language=language,
                unsafe_exec=options.unsafe_exec,
            )
        )
        if options.limit is not None:  # that the others have no samples is what was asked for
            left_out = found["counts"]["problems_without_samples"]
            found["notes"] = [note for note in found["notes"] if not note.startswith(f"{left_out} of ")]
        kept = ("metrics", "counts", "statuses", "notes", "versions")
        return {name: found[name] for name in kept if name in found}

    return ProblemSet(
        name,
        [problem.task_id for problem in problems],
        [problem.prompt("instruct" if chat else "raw") for problem in problems],
        () if chat else tuple(dict.fromkeys(stop for problem in problems for stop in problem.stop_strings)),
        MAX_NEW_TOKENS,
        score,
        problems[0].unavailable(),
    )
