"""Running one task of `ebft eval` on a model, from the start or from where it was stopped.

Calibration measures sequences (`calibration.py`). The others generate text: completions are made for each set of
problems greedily and by sampling (`<set>.greedy.jsonl`, `<set>.samples.jsonl`, the format `ebft score` takes), and the
set's own `score` turns completions into metrics, at once or where there is a sandbox (`scored`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

from ebft.config.evaluation import EvalOptions
from ebft.errors import DataError
from ebft.evaluate.calibration import run_calibration
from ebft.evaluate.generation import GREEDY, GenerationSettings
from ebft.evaluate.scoring import shares_of_kinds
from ebft.evaluate.subject import Subject
from ebft.evaluate.tasks import ProblemSet, ResumableRecords, Scored, fingerprint
from ebft.runtime.files import read_jsonl, write_jsonl
from ebft.runtime.messages import progress

MANY_EMPTY = 0.05  # a larger share of empty answers is worth a note: the prompt or the stop strings may be wrong


def run_task(
    task: str, options: EvalOptions, subject: Subject, folder: Path, sets: Sequence[ProblemSet] = ()
) -> Scored:
    """One task, from the start or from where it was stopped. `sets` are its problems, from `problem_sets`."""
    if task == "calibration":
        return run_calibration(options, subject, folder)
    options = with_prompt_style(options, subject)
    for problems in sets:
        if problems.skipped is None:
            folder.mkdir(parents=True, exist_ok=True)
            write_jsonl(folder / f"{problems.name}.prompts.jsonl", _asked(problems, options))
            _generate(problems, options, subject, folder)
    return scored(options, folder, sets)


def with_prompt_style(options: EvalOptions, subject: Subject) -> EvalOptions:
    """`auto` decided: chat for a model whose tokenizer has a chat template."""
    if options.prompt_style != "auto":
        return options
    chats = getattr(subject.tokenizer, "chat_template", None) is not None
    return replace(options, prompt_style="chat" if chats else "raw")


def _asked(problems: ProblemSet, options: EvalOptions) -> list[dict[str, str]]:
    prompts = problems.asked[options.prompt_style].prompts
    return [{"task_id": key, "prompt": text} for key, text in zip(problems.keys, prompts, strict=True)]


def _decodings(problems: ProblemSet, options: EvalOptions) -> dict[str, GenerationSettings]:
    asked = problems.asked[options.prompt_style]
    greedy = GenerationSettings(
        max_new_tokens=options.max_new_tokens or problems.max_new_tokens,
        stop=asked.stop,
        prompt_style="chat" if options.prompt_style == "chat" else "raw",
        system_prompt=options.system_prompt,
        answer_start=asked.answer_start,
        seed=options.seed,
        too_long=options.too_long,
    )
    sampled = replace(greedy, temperature=options.temperature, top_p=options.top_p, samples=options.samples or 1)
    return ({"greedy": greedy} if options.greedy else {}) | ({"samples": sampled} if options.samples else {})


def _generate(problems: ProblemSet, options: EvalOptions, subject: Subject, folder: Path) -> None:
    """Makes the completions that are not on disk yet, the greedy ones beside the samples."""
    prompts, keys = problems.asked[options.prompt_style].prompts, problems.keys
    decodings = _decodings(problems, options)
    records: dict[str, ResumableRecords] = {}
    wanted: list[tuple[int, int]] = []
    total = 0
    for decoding, settings in decodings.items():
        made_with = asdict(settings) | {"model": subject.identity, "backend": options.backend}
        made_with["problems"] = fingerprint([keys, prompts])
        name = f"{problems.name}.{decoding}"
        records[decoding] = ResumableRecords(folder, name, made_with, options.overwrite, options.replace_changed)
        made = {(row["task_id"], row["sample"]) for row in records[decoding].rows}
        every = list(product(range(len(keys)), range(settings.samples)))
        left = [(place, sample) for place, sample in every if (keys[place], sample) not in made]
        wanted += [(place, GREEDY) for place, _ in left] if decoding == "greedy" else left
        total += len(every)
    if not wanted:
        return
    with progress(problems.name, total, total - len(wanted)) as advance:
        settings = decodings.get("samples") or decodings["greedy"]
        for batch in subject.generator.stream(prompts, settings, wanted, keys):
            rows: dict[str, list[dict[str, Any]]] = {decoding: [] for decoding in records}
            for place, sample, completion in batch:
                rows["greedy" if sample == GREEDY else "samples"].append(
                    {
                        "task_id": keys[place],
                        "sample": max(sample, 0),
                        "completion": completion.text,
                        "finish": completion.finish,
                        "tokens": completion.tokens,
                        "prompt_truncated": completion.prompt_truncated,
                    }
                )
            for decoding, into in records.items():
                into.append(rows[decoding])
            advance(len(batch))


def scored(options: EvalOptions, folder: Path, sets: Sequence[ProblemSet]) -> Scored:
    """Metrics of the completions that are in the folder: no model is needed.

    Of several sets, such as languages, the plain mean over them, and each under its own name.
    """
    parts = [_scored_set(problems, options, folder) for problems in sets]
    return parts[0] if len(parts) == 1 else joined(parts)


def _scored_set(problems: ProblemSet, options: EvalOptions, folder: Path) -> Scored:
    result: Scored = {"name": problems.name, "metrics": {}, "problems": len(problems.keys), "generations": {}}
    result |= {"notes": [], **({"language": problems.language} if problems.language else {})}
    if problems.skipped is not None:  # nothing could be run, so nothing is generated either
        return result | {"skipped": problems.skipped, "notes": [f"{problems.name} is skipped: {problems.skipped}"]}
    if read_jsonl(file := folder / f"{problems.name}.prompts.jsonl") != _asked(problems, options):
        raise DataError(f"{file} has other prompts than the problems: they are not those the model was given")
    for decoding, settings in _decodings(problems, options).items():
        rows = read_jsonl(file := folder / f"{problems.name}.{decoding}.jsonl")
        found = {(row["task_id"], row["sample"]): row for row in rows}
        if found.keys() != {*product(problems.keys, range(settings.samples))}:
            raise DataError(
                f"{file} holds {len(rows)} completions, not {settings.samples} of each of the {len(problems.keys)} "
                "problems; run the same `ebft eval` again first"
            )
        summary = _summary(rows)
        result["generations"][decoding] = {**asdict(settings), **summary}
        notes = [f"{summary[name]} {text}" for name, text in _WORTH_A_NOTE.items() if summary[name]]
        if summary["empty"] > MANY_EMPTY * len(rows):
            notes.append(f"{summary['empty']} of {len(rows)} answers are empty")
        if problems.score is None:
            answers = [(problems.language or "", r["task_id"], r["completion"], r["finish"]) for r in rows]
            metrics = shares_of_kinds(answers)
        else:
            of_problems = [[found[key, sample] for sample in range(settings.samples)] for key in problems.keys]
            texts, ends = ([[row[name] for row in of] for of in of_problems] for name in ("completion", "finish"))
            result[decoding] = problems.score(texts, file, ends)
            metrics = result[decoding].pop("metrics")
            notes += result[decoding].pop("notes", [])
        prefix = "greedy_" if decoding == "greedy" else ""
        result["metrics"] |= {f"{prefix}{name}": value for name, value in metrics.items()}
        result["notes"] += [f"{problems.name}, {decoding}: {note}" for note in notes]
    if problems.score is None:
        later = "not scored yet; run `ebft score` on its folder, where there is a sandbox"
        result |= {"skipped": later, "unscored": True, "notes": [*result["notes"], f"{problems.name} is {later}"]}
    return result


_WORTH_A_NOTE = {
    "cut_at_context_end": "completions ended where the model's context did, before max_new_tokens",
    "prompts_truncated": "prompts lost their beginning, to fit the model's context",
}


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What the user should know about the completions, beside their scores."""
    finishes = [row["finish"] for row in rows]
    return {
        "completions": len(rows),
        "mean_tokens": sum(row["tokens"] for row in rows) / max(len(rows), 1),
        "cut_at_max_new_tokens": finishes.count("length"),
        "cut_at_context_end": finishes.count("context"),
        "empty": sum(not row["completion"].strip() for row in rows),
        "prompts_truncated": len({row["task_id"] for row in rows if row["prompt_truncated"]}),
    }


def joined(parts: list[Scored]) -> Scored:
    counted = [part for part in parts if not part.get("skipped") or part.get("unscored")]
    metrics: dict[str, Any] = {}
    for name in dict.fromkeys(name for part in counted for name in part["metrics"]):
        found = [part["metrics"][name] for part in counted if name in part["metrics"]]
        errors = [entry["standard_error"] for entry in found]
        metrics[name] = {
            "value": sum(entry["value"] for entry in found) / len(found),
            "standard_error": None if None in errors else sum(e * e for e in errors) ** 0.5 / len(found),
            "count": sum(entry["count"] for entry in found),
        }
    for part in counted:
        metrics |= {f"{part['name']} {name}": value for name, value in part["metrics"].items()}
    return {
        "metrics": metrics,
        "problems": sum(part["problems"] for part in counted),
        "parts": [*counted, *(part for part in parts if part not in counted)],
        "notes": [note for part in parts for note in part["notes"]],
    }
