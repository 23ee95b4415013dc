"""The tasks `humaneval`, `mbpp` and `multipl-e` of `ebft eval`: prompts, and how their completions are scored."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ebft.config.evaluation import EvalOptions
from ebft.errors import ConfigError, DataError, HubUnreachable, SandboxError
from ebft.problems.catalog import load_problems
from ebft.problems.problem import Problem
from ebft.sandbox.box import Sandbox
from ebft.tasks.problem_set import Asked, ProblemSet, Scored
from ebft.tasks.scoring import (
    MEMORY_MIB,
    TIMEOUT,
    K,
    Sample,
    outcomes_file_of,
    program_limits,
    score_samples,
    write_results,
)

MAX_NEW_TOKENS = 512


def code_sets(task: str, options: EvalOptions) -> list[ProblemSet]:
    """One set, or for MultiPL-E one for each language."""
    limits = program_limits(options.timeout or TIMEOUT, MEMORY_MIB)
    sandbox = Sandbox(unsafe=options.unsafe_exec, limits=limits)
    if task == "multipl-e":
        sets = [
            _set(task, _of_language(options.multipl_e, language), language, options, sandbox)
            for language in options.languages
        ]
    else:
        source = {"humaneval": options.humaneval, "mbpp": options.mbpp}[task]
        sets = [_set(task, source, None, options, sandbox)]
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


def _set(task: str, source: str, language: str | None, options: EvalOptions, sandbox: Sandbox) -> ProblemSet:
    try:
        problems = load_problems(task, source)
    except HubUnreachable as error:
        raise DataError(f"{error} (--{task} FILE)") from None
    if language is not None:
        problems = [problem for problem in problems if problem.language == language]
    problems = problems[: options.limit]
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
        found["settings"] = {"problems": source, "samples": str(file), "language": language, **found["settings"]}
        write_results(output, {"task": task, **found})
        kept = ("metrics", "counts", "statuses", "answers", "example", "notes", "versions")
        return {name: found[name] for name in kept if name in found}

    return ProblemSet(
        task if language is None else f"{task}-{language}",
        [problem.task_id for problem in problems],
        {style: _asked(problems, style) for style in ("raw", "chat")},
        MAX_NEW_TOKENS,
        score if options.score else None,
        skipped,
        problems[0].language,
    )


def _asked(problems: Sequence[Problem], style: str) -> Asked:
    stop = tuple(dict.fromkeys(stop for problem in problems for stop in problem.stop_strings(style)))
    start = problems[0].answer_start if style == "chat" else ""
    return Asked([problem.prompt(style) for problem in problems], stop, start)
