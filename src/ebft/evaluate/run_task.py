"""Running one task of `ebft eval` on a model, from the start or from where it was stopped.

Calibration measures sequences (`calibration.py`). The others generate text: completions are made for each set of
problems greedily and by sampling (`<set>.greedy.jsonl`, `<set>.samples.jsonl`, the format `ebft score` takes), and the
set's own `score` turns completions into metrics, at once or where there is a sandbox (`score_sets`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
Rows = list[dict[str, Any]]


def run_task(
    task: str, options: EvalOptions, subject: Subject, folder: Path, sets: Sequence[ProblemSet] = ()
) -> Scored:
    """One task, from the start or from where it was stopped. `sets` are its problems, from `problem_sets`."""
    if task == "calibration":
        return run_calibration(options, subject, folder)
    options = with_prompt_style(options, subject)
    parts = []
    for problems in sets:
        made: dict[str, Rows] = {}
        if problems.skipped is None:
            folder.mkdir(parents=True, exist_ok=True)
            write_jsonl(_prompts_file(problems, folder), _asked(problems, options))
            made = completions(problems, options, subject, folder)
        parts.append(scored_set(problems, options, made, folder))
    return joined(parts)


def with_prompt_style(options: EvalOptions, subject: Subject) -> EvalOptions:
    """`auto` decided: chat for a model whose tokenizer has a chat template."""
    if options.prompt_style != "auto":
        return options
    chats = getattr(subject.tokenizer, "chat_template", None) is not None
    return replace(options, prompt_style="chat" if chats else "raw")


def score_sets(options: EvalOptions, folder: Path, sets: Sequence[ProblemSet]) -> Scored:
    """The scores of completions that are all in the folder: no model is needed."""
    parts = []
    for problems in sets:
        made: dict[str, Rows] = {}
        if problems.skipped is None:
            if read_jsonl(file := _prompts_file(problems, folder)) != _asked(problems, options):
                raise DataError(f"{file} has other prompts than the problems: they are not those the model was given")
            for decoding, settings in _decodings(problems, options).items():
                rows = made[decoding] = read_jsonl(file := folder / f"{problems.name}.{decoding}.jsonl")
                wanted = {*product(problems.keys, range(settings.samples))}
                if {(row["task_id"], row["sample"]) for row in rows} != wanted:
                    raise DataError(
                        f"{file} holds {len(rows)} completions, not {settings.samples} of each of the "
                        f"{len(problems.keys)} problems; run the same `ebft eval` again first"
                    )
        parts.append(scored_set(problems, options, made, folder))
    return joined(parts)


def scored_set(problems: ProblemSet, options: EvalOptions, made: Mapping[str, Rows], folder: Path) -> Scored:
    """Metrics of the completions of each decoding."""
    result: Scored = {"name": problems.name, "metrics": {}, "problems": len(problems.keys), "generations": {}}
    result |= {"notes": [], **({"language": problems.language} if problems.language else {})}
    if problems.skipped is not None:  # nothing could be run, so nothing is generated either
        return result | {"skipped": problems.skipped, "notes": [f"{problems.name} is skipped: {problems.skipped}"]}
    for decoding, settings in _decodings(problems, options).items():
        rows = made[decoding]
        summary = _summary(rows)
        result["generations"][decoding] = {**asdict(settings), **summary}
        notes = [f"{summary[name]} {text}" for name, text in _WORTH_A_NOTE.items() if summary[name]]
        if summary["empty"] > MANY_EMPTY * len(rows):
            notes.append(f"{summary['empty']} of {len(rows)} answers are empty")
        if problems.score is not None:
            found = {(row["task_id"], row["sample"]): row for row in rows}
            texts, ends = (
                [[found[key, sample][field] for sample in range(settings.samples)] for key in problems.keys]
                for field in ("completion", "finish")
            )
            result[decoding] = problems.score(texts, folder / f"{problems.name}.{decoding}.jsonl", ends)
            metrics = result[decoding].pop("metrics")
            notes += result[decoding].pop("notes", [])
        else:
            answers = [(problems.language or "", r["task_id"], r["completion"], r["finish"]) for r in rows]
            metrics = shares_of_kinds(answers)
        prefix = "greedy_" if decoding == "greedy" else ""
        result["metrics"] |= {f"{prefix}{name}": value for name, value in metrics.items()}
        result["notes"] += [f"{problems.name}, {decoding}: {note}" for note in notes]
    if problems.score is None:
        later = "not scored yet; run `ebft score` on its folder, where there is a sandbox"
        result |= {"skipped": later, "unscored": True, "notes": [*result["notes"], f"{problems.name} is {later}"]}
    return result


def _prompts_file(problems: ProblemSet, folder: Path) -> Path:
    return folder / f"{problems.name}.prompts.jsonl"


def _asked(problems: ProblemSet, options: EvalOptions) -> list[dict[str, str]]:
    prompts = problems.asked[options.prompt_style].prompts
    return [{"task_id": key, "prompt": text} for key, text in zip(problems.keys, prompts, strict=True)]


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


def completions(problems: ProblemSet, options: EvalOptions, subject: Subject, folder: Path) -> dict[str, Rows]:
    """All completions of a set by decoding: those that are on disk, and those that are still to be made, the greedy
    ones beside the samples."""
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
        settings = decodings.get("samples") or decodings["greedy"]
        with progress(problems.name, total, total - len(wanted)) as advance:
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
    return {decoding: into.rows for decoding, into in records.items()}


_WORTH_A_NOTE = {
    "cut_at_context_end": "completions ended where the model's context did, before max_new_tokens",
    "prompts_truncated": "prompts lost their beginning, to fit the model's context",
}


def _summary(rows: Rows) -> dict[str, Any]:
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
    """Sets of one task, such as languages: the plain mean over them, and each under its own name. One is itself."""
    if len(parts) == 1:
        return parts[0]
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
