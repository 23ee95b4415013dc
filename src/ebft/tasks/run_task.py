"""Running one task of `ebft eval` on a model, from the start or from where it was stopped.

Calibration measures sequences (`calibration_task.py`). The others generate text: completions are made for each set of
problems greedily and by sampling (`<set>.greedy.jsonl`, `<set>.samples.jsonl`, the format `ebft score` takes), and the
set's own `score` turns completions into metrics, at once or where there is a sandbox (`score_sets`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from ebft.config.evaluation import EvalOptions
from ebft.errors import DataError
from ebft.method.measures import ratio_of_sums
from ebft.runtime.files import read_jsonl, write_jsonl
from ebft.runtime.messages import progress
from ebft.tasks.answer_counts import is_empty, note_on_empty, of_means, shares, why_zero
from ebft.tasks.calibration_task import run_calibration
from ebft.tasks.generation import GREEDY, GenerationSettings
from ebft.tasks.problem_set import ProblemSet, Scored
from ebft.tasks.resumable_records import ResumableRecords, fingerprint
from ebft.tasks.subject import Subject

RowsOf = Callable[[str, GenerationSettings], list[dict[str, Any]]]  # the completions of one decoding


def run_task(
    task: str, options: EvalOptions, subject: Subject, folder: Path, sets: Sequence[ProblemSet] = ()
) -> Scored:
    """One task, from the start or from where it was stopped. `sets` are its problems, from `problem_sets`."""
    if task == "calibration":
        return run_calibration(options, subject, folder)
    options = with_prompt_style(options, subject)
    return joined([run_set(problems, options, subject, folder) for problems in sets])


def with_prompt_style(options: EvalOptions, subject: Subject) -> EvalOptions:
    """`auto` decided: chat for a model whose tokenizer has a chat template."""
    if options.prompt_style != "auto":
        return options
    chats = getattr(subject.tokenizer, "chat_template", None) is not None
    return replace(options, prompt_style="chat" if chats else "raw")


def score_sets(options: EvalOptions, folder: Path, sets: Sequence[ProblemSet]) -> Scored:
    """The scores of completions that are all in the folder: no model is needed."""
    for problems in sets:
        if problems.skipped is None and read_jsonl(_prompts_file(problems, folder)) != _asked(problems, options):
            raise DataError(
                f"{_prompts_file(problems, folder)} has other prompts than the problems: they are not those that the "
                "model was given"
            )
    return joined([scored_set(problems, options, partial(_made, problems, folder), folder) for problems in sets])


def _made(problems: ProblemSet, folder: Path, name: str, settings: GenerationSettings) -> list[dict[str, Any]]:
    """The completions in the folder, if they are all that these problems and settings ask for."""
    rows = read_jsonl(folder / f"{name}.jsonl")
    if {(row["task_id"], row["sample"]) for row in rows} != {*product(problems.keys, range(settings.samples))}:
        raise DataError(
            f"{folder / name}.jsonl holds {len(rows)} completions, not {settings.samples} of each of the "
            f"{len(problems.keys)} problems; generate the others first, with the same `ebft eval` as before"
        )
    return rows


def run_set(problems: ProblemSet, options: EvalOptions, subject: Subject, folder: Path) -> Scored:
    found: dict[str, list[dict[str, Any]]] = {}
    if problems.skipped is None:
        folder.mkdir(parents=True, exist_ok=True)
        write_jsonl(_prompts_file(problems, folder), _asked(problems, options))
        found = completions(problems, options, subject, folder)
    return scored_set(problems, options, lambda name, settings: found[name], folder)


def scored_set(problems: ProblemSet, options: EvalOptions, rows_of: RowsOf, folder: Path) -> Scored:
    result: Scored = {"name": problems.name, "metrics": {}, "problems": len(problems.keys), "generations": {}}
    result["notes"] = []
    if problems.language is not None:
        result["language"] = problems.language
    if problems.skipped is not None:  # nothing could be run, so nothing is generated either
        return result | {"skipped": problems.skipped, "notes": [f"{problems.name} is skipped: {problems.skipped}"]}
    for decoding, settings in _decodings(problems, options).items():
        rows = rows_of(f"{problems.name}.{decoding}", settings)
        summary = _summary(rows)
        result["generations"][decoding] = {**asdict(settings), **summary}
        for name, text in _WORTH_A_NOTE.items():
            if number := summary[name]:
                result["notes"].append(f"{problems.name}, {decoding}: {number} {text}")
        if note := note_on_empty(summary["empty"], len(rows)):
            result["notes"].append(f"{problems.name}, {decoding}: {note}")
        prefix = "greedy_" if decoding == "greedy" else ""
        kinds = {}
        if problems.language is not None:
            for kind, by_problem in shares(rows, problems.language).items():
                share, error = ratio_of_sums(*of_means(by_problem))
                kinds[f"{prefix}{kind}"] = {
                    "value": share,
                    "standard_error": None if math.isnan(error) else error,
                    "count": len(by_problem),
                }
        if problems.score is None:
            result["metrics"] |= kinds
            continue
        texts = [[""] * settings.samples for _ in problems.keys]
        finishes = [[""] * settings.samples for _ in problems.keys]
        place_of = {key: place for place, key in enumerate(problems.keys)}
        for row in rows:
            texts[place_of[row["task_id"]]][row["sample"]] = row["completion"]
            finishes[place_of[row["task_id"]]][row["sample"]] = row["finish"]
        scored = problems.score(texts, folder / f"{problems.name}.{decoding}.jsonl", finishes)
        metrics = scored.pop("metrics")
        result["metrics"] |= {f"{prefix}{name}": value for name, value in metrics.items()} | kinds
        notes = scored.pop("notes", [])
        if metrics and not any(entry["value"] for entry in metrics.values()) and "example" not in scored:
            scored["example"] = _example(rows, _asked(problems, options))
            notes = [*notes, why_zero(_kinds(summary), len(rows), scored["example"])]
        result["notes"] += [f"{problems.name}, {decoding}: {note}" for note in notes]
        result[decoding] = scored
    if problems.score is None:
        later = "not scored yet; run `ebft score` on its folder, where there is a sandbox"
        result |= {"skipped": later, "unscored": True, "notes": [*result["notes"], f"{problems.name} is {later}"]}
    return result


def _prompts_file(problems: ProblemSet, folder: Path) -> Path:
    return folder / f"{problems.name}.prompts.jsonl"


def _asked(problems: ProblemSet, options: EvalOptions) -> list[dict[str, str]]:
    prompts = problems.asked[options.prompt_style].prompts
    return [{"task_id": key, "prompt": text} for key, text in zip(problems.keys, prompts, strict=True)]


def _kinds(summary: dict[str, Any]) -> dict[str, int]:
    return {"empty": summary["empty"], "cut_off": summary["cut_at_max_new_tokens"] + summary["cut_at_context_end"]}


def _example(rows: Sequence[dict[str, Any]], asked: Sequence[dict[str, str]]) -> dict[str, Any]:
    row = next((row for row in rows if is_empty(row["completion"])), rows[0])
    found = next(one for one in asked if one["task_id"] == row["task_id"])
    return {**found, "completion": row["completion"], "finish": row["finish"]}


def _decodings(problems: ProblemSet, options: EvalOptions) -> dict[str, GenerationSettings]:
    assert options.prompt_style != "auto"
    asked = problems.asked[options.prompt_style]
    greedy = GenerationSettings(
        max_new_tokens=options.max_new_tokens or problems.max_new_tokens,
        stop=asked.stop,
        prompt_style=options.prompt_style,
        system_prompt=options.system_prompt,
        answer_start=asked.answer_start,
        seed=options.seed,
        too_long=options.too_long,
    )
    found = {"greedy": greedy} if options.greedy else {}
    if options.samples:
        found["samples"] = replace(
            greedy, temperature=options.temperature, top_p=options.top_p, samples=options.samples
        )
    return found


def completions(
    problems: ProblemSet, options: EvalOptions, subject: Subject, folder: Path
) -> dict[str, list[dict[str, Any]]]:
    """All completions of a set by the names of their files: those that are on disk, and those that are still to be
    made, the greedy ones beside the samples."""
    prompts = problems.asked[options.prompt_style].prompts
    place_of = {key: place for place, key in enumerate(problems.keys)}
    decodings = _decodings(problems, options)
    records: dict[str, ResumableRecords] = {}
    wanted: list[tuple[int, int]] = []
    total = 0
    for decoding, settings in decodings.items():
        made_with = {
            **asdict(settings),
            "model": subject.identity,
            "backend": options.backend,
            "problems": fingerprint([problems.keys, prompts]),
        }
        name = f"{problems.name}.{decoding}"
        records[decoding] = ResumableRecords(folder, name, made_with, options.overwrite, options.replace_changed)
        made = {(place_of[row["task_id"]], row["sample"]) for row in records[decoding].rows}
        every = [(place, sample) for place in range(len(problems.keys)) for sample in range(settings.samples)]
        left = [pair for pair in every if pair not in made]
        wanted += [(place, GREEDY) for place, _ in left] if decoding == "greedy" else left
        total += len(every)
    if wanted:
        with progress(problems.name, total, total - len(wanted)) as advance:
            settings = decodings.get("samples") or decodings["greedy"]
            for batch in subject.generator.stream(prompts, settings, wanted, problems.keys):
                for decoding, into in records.items():
                    into.append(
                        {
                            "task_id": problems.keys[place],
                            "sample": max(sample, 0),
                            "completion": completion.text,
                            "finish": completion.finish,
                            "tokens": completion.tokens,
                            "prompt_truncated": completion.prompt_truncated,
                        }
                        for place, sample, completion in batch
                        if (sample == GREEDY) == (decoding == "greedy")
                    )
                advance(len(batch))
    return {f"{problems.name}.{decoding}": into.rows for decoding, into in records.items()}


_WORTH_A_NOTE = {
    "cut_at_context_end": "completions ended where the model's context did, before max_new_tokens",
    "prompts_truncated": "prompts lost their beginning, to fit the model's context",
}


def _summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the user should know about the completions, beside their scores."""
    finishes = [row["finish"] for row in rows]
    return {
        "completions": len(rows),
        "mean_tokens": sum(row["tokens"] for row in rows) / max(len(rows), 1),
        "cut_at_max_new_tokens": finishes.count("length"),
        "cut_at_context_end": finishes.count("context"),
        "empty": sum(is_empty(row["completion"]) for row in rows),
        "prompts_truncated": len({row["task_id"] for row in rows if row["prompt_truncated"]}),
    }


def joined(parts: list[Scored]) -> Scored:
    """Sets of one task, such as languages: the plain mean over them, and each under its own name. One is itself."""
    if len(parts) == 1:
        return parts[0]
    skipped = [part for part in parts if part.get("skipped")]
    parts = [part for part in parts if not part.get("skipped")]
    metrics: dict[str, Any] = {}
    for name in dict.fromkeys(name for part in parts for name in part["metrics"]):
        found = [part["metrics"][name] for part in parts if name in part["metrics"]]
        errors = [entry["standard_error"] for entry in found]
        error = None if None in errors else sum(e * e for e in errors) ** 0.5 / len(found)
        metrics[name] = {
            "value": sum(entry["value"] for entry in found) / len(found),
            "standard_error": error,
            "count": sum(entry["count"] for entry in found),
        }
    for part in parts:
        metrics |= {f"{part['name']} {name}": value for name, value in part["metrics"].items()}
    return {
        "metrics": metrics,
        "problems": sum(part["problems"] for part in parts),
        "parts": [*parts, *skipped],
        "notes": [note for part in [*parts, *skipped] for note in part["notes"]],
    }
