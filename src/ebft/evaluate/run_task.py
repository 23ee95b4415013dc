"""Running one task of `ebft eval` on a model, from the start or from where it was stopped.

Calibration measures sequences (`calibration.py`). The others generate completions for each set of problems, greedily
and by sampling, and the set's own `score` turns them into metrics, at once or where there is a sandbox (`scored`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path

from ebft.config.evaluation import EvalOptions
from ebft.errors import DataError
from ebft.evaluate.calibration import run_calibration
from ebft.evaluate.generation import GREEDY, GenerationSettings
from ebft.evaluate.scoring import K, Results, over_sets, shares_of_kinds
from ebft.evaluate.subject import Subject
from ebft.evaluate.tasks import ProblemSet, ResumableRecords, task_settings
from ebft.runtime.files import read_jsonl, write_jsonl
from ebft.runtime.messages import progress

NOT_SCORED = "not scored yet; run `ebft score` on its folder, where there is a sandbox"


def run_task(
    task: str, options: EvalOptions, subject: Subject, folder: Path, sets: Sequence[ProblemSet] = ()
) -> Results:
    """One task, from the start or from where it was stopped. `sets` are its problems, from `problem_sets`."""
    if task == "calibration":
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
        "metrics": over_sets(counted),
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
        metrics = shares_of_kinds(rows, language)
        if options.score or not language:
            details = problems.score(rows, problems.scores_file(file), K)
            metrics = details.pop("metrics") | metrics
            part["notes"] += [f"{name}, {decoding}: {note}" for note in details.pop("notes", [])]
            part[decoding] = details
        part["metrics"] |= {f"{prefix}{metric}": value for metric, value in metrics.items()}
    if language and not options.score:
        part |= {"skipped": NOT_SCORED, "unscored": True, "notes": [*part["notes"], f"{name} is {NOT_SCORED}"]}
    return part
