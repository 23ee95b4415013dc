"""The tasks of `ebft eval`, each from its options to records on disk to numbers.

Calibration measures sequences. The others generate text: a task reads one or several sets of problems, completions
are made for each set greedily and by sampling (`<set>.greedy.jsonl`, `<set>.samples.jsonl`, the format `ebft score`
takes), and the set's own `score` turns completions into metrics.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from ebft.config.evaluation import EvalOptions
from ebft.config.training import EBFTConfig, check_method
from ebft.data.packing import DocumentIndex, SequenceDataset
from ebft.data.rows import fingerprint as source_fingerprint
from ebft.data.store import tokenize_source
from ebft.errors import ConfigError
from ebft.method.metrics import Estimate
from ebft.tasks import calibration, translation
from ebft.tasks.generation import GenerationSettings
from ebft.tasks.record_files import Records
from ebft.tasks.subject import Subject, space

Scored = dict[str, Any]  # {"metrics": {name: {"value", "standard_error", "count"}}, and what else is worth knowing}


@dataclass(frozen=True)
class ProblemSet:
    name: str  # of its files
    keys: Sequence[str]
    prompts: Sequence[str]
    stop: tuple[str, ...]
    max_new_tokens: int
    score: Callable[[list[list[str]], Path], Scored]  # of the completions of each problem, and the file they are in
    skipped: str | None = None  # why its answers cannot be scored on this machine


def run_task(
    task: str, options: EvalOptions, subject: Subject, folder: Path, sets: Sequence[ProblemSet] = ()
) -> Scored:
    """One task, from the start or from where it was stopped. `sets` are its problems, from `problem_sets`."""
    if task == "calibration":
        return run_calibration(options, subject, folder)
    parts = [run_set(problems, options, subject, folder) for problems in sets]
    return parts[0] if len(parts) == 1 else joined(parts)


def problem_sets(task: str, options: EvalOptions) -> list[ProblemSet]:
    """The problems of a task. Read first, so that an error in them shows before any model is loaded."""
    if task == "calibration":
        calibration_settings(options)
        if options.calibration_data is None:
            raise ConfigError(
                "the task calibration needs --calibration-data: a file, a folder, a hub name or a built-in such as "
                "stdlib-functions"
            )
        return []
    if task == "translation":
        return [translation_set(options)]
    from ebft.tasks import code_sets

    return code_sets.code_sets(task, options)


# ---- generation ----------------------------------------------------------------------------------------------------


def run_set(problems: ProblemSet, options: EvalOptions, subject: Subject, folder: Path) -> Scored:
    result: Scored = {"name": problems.name, "metrics": {}, "problems": len(problems.keys), "generations": {}}
    result["notes"] = []
    if problems.skipped is not None:  # nothing could be run, so nothing is generated either
        return result | {"skipped": problems.skipped, "notes": [f"{problems.name} is skipped: {problems.skipped}"]}
    base = GenerationSettings(
        max_new_tokens=options.max_new_tokens or problems.max_new_tokens,
        stop=problems.stop,
        prompt_style=options.prompt_style,  # type: ignore[arg-type]
        system_prompt=options.system_prompt,
        seed=options.seed,
        too_long=options.too_long,  # type: ignore[arg-type]
    )
    decodings = {}
    if options.greedy:
        decodings["greedy"] = base
    if options.samples:
        decodings["samples"] = replace(
            base, temperature=options.temperature, top_p=options.top_p, samples=options.samples
        )
    for decoding, settings in decodings.items():
        rows = completions(problems, f"{problems.name}.{decoding}", settings, options, subject, folder)
        texts = [[""] * settings.samples for _ in problems.keys]
        place_of = {key: place for place, key in enumerate(problems.keys)}
        for row in rows:
            texts[place_of[row["task_id"]]][row["sample"]] = row["completion"]
        scored = problems.score(texts, folder / f"{problems.name}.{decoding}.jsonl")
        metrics = scored.pop("metrics")
        prefix = "greedy_" if decoding == "greedy" else ""
        result["metrics"] |= {f"{prefix}{name}": value for name, value in metrics.items()}
        result["notes"] += [f"{decoding}: {note}" for note in scored.pop("notes", ())]
        result[decoding] = scored
        result["generations"][decoding] = {**asdict(settings), **_summary(rows)}
        for name, text in _WORTH_A_NOTE.items():
            if number := result["generations"][decoding][name]:
                result["notes"].append(f"{problems.name}, {decoding}: {number} {text}")
    return result


def completions(
    problems: ProblemSet, name: str, settings: GenerationSettings, options: EvalOptions, subject: Subject, folder: Path
) -> list[dict[str, Any]]:
    """All completions of a set, those that are on disk and those that are still to be made."""
    made_with = {
        **asdict(settings),
        "model": subject.identity,
        "backend": options.backend,
        "problems": fingerprint([problems.keys, problems.prompts]),
    }
    records = Records(folder, name, made_with, options.overwrite)
    place_of = {key: place for place, key in enumerate(problems.keys)}
    made = {(place_of[row["task_id"]], row["sample"]) for row in records.rows}
    every = [(place, sample) for place in range(len(problems.keys)) for sample in range(settings.samples)]
    wanted = [pair for pair in every if pair not in made]
    if wanted:
        with progress(name, len(every), len(made)) as advance:
            for batch in subject.generator.stream(problems.prompts, settings, wanted, problems.keys):
                records.append(
                    {
                        "task_id": problems.keys[place],
                        "sample": sample,
                        "completion": completion.text,
                        "finish": completion.finish,
                        "tokens": completion.tokens,
                        "prompt_truncated": completion.prompt_truncated,
                    }
                    for place, sample, completion in batch
                )
                advance(len(batch))
    return records.rows


_WORTH_A_NOTE = {
    "cut_at_context_end": "completions ended where the model's context did, before max_new_tokens",
    "prompts_truncated": "prompts lost their beginning, to fit the model's context",
}


def _summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the user should know about the completions, beside what they are worth."""
    finishes = [row["finish"] for row in rows]
    return {
        "completions": len(rows),
        "mean_tokens": sum(row["tokens"] for row in rows) / max(len(rows), 1),
        "cut_at_max_new_tokens": finishes.count("length"),
        "cut_at_context_end": finishes.count("context"),
        "prompts_truncated": len({row["task_id"] for row in rows if row["prompt_truncated"]}),
    }


def joined(parts: list[Scored]) -> Scored:
    """Sets of one task, such as languages: the plain mean over them, and each under its own name."""
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


def translation_set(options: EvalOptions) -> ProblemSet:
    if options.translation_data is None:
        raise ConfigError("the task translation needs --translation-data: a file, a folder or a hub name")
    source_field, target_field = translation.find_fields(
        options.translation_data, options.translation_split, options.source_field, options.target_field
    )
    source = translation.language_name(options.source_language, source_field, "--source-language")
    target = translation.language_name(options.target_language, target_field, "--target-language")
    pairs = translation.read_pairs(
        options.translation_data, options.translation_split, source_field, target_field, options.limit
    )
    scoring = translation.Scoring(
        target_language=target,
        bleu_tokenize=options.bleu_tokenize,
        comet_model=options.comet_model,
        comet_python=options.comet_python,
    )

    def score(texts: list[list[str]], file: Path) -> Scored:
        found = translation.evaluate(pairs, texts, scoring)
        sentences = file.with_name(f"{file.stem}.scores.jsonl")
        sentences.write_text("".join(json.dumps(row) + "\n" for row in found.pop("sentences")), encoding="utf-8")
        return found

    return ProblemSet(
        "translation",
        [pair.key for pair in pairs],
        translation.prompts(pairs, source, target, options.prompt_template or translation.TEMPLATE),
        translation.STOP if options.prompt_style == "raw" else (),
        256,
        score,
    )


# ---- calibration ---------------------------------------------------------------------------------------------------


def run_calibration(options: EvalOptions, subject: Subject, folder: Path) -> Scored:
    from ebft.train.sequences import check_sequences, end_token_ids, pad_token_id

    config, profile = calibration_settings(options)
    dataset = SequenceDataset(
        calibration_documents(options, subject.tokenizer),
        options.context_length,
        options.packing,
        pad_token_id(subject.tokenizer),
    )
    check_sequences(dataset, config)
    rows = range(min(len(dataset), options.sequences, options.limit or options.sequences))
    made_with = {
        "model": subject.identity,
        "features": subject.feature_source,
        "data": source_fingerprint(options.calibration_data or "", options.calibration_split),
        **{name: getattr(options, name) for name in (*_MEASURED_WITH, *_MADE_OF)},
    }
    records = Records(folder, "calibration", made_with, options.overwrite)
    made = {row["sequence"] for row in records.rows}
    wanted = [row for row in rows if row not in made]
    end_tokens = end_token_ids(subject.tokenizer, options.document_masks)
    features = space(subject)
    if wanted:
        with progress("calibration", len(rows), len(rows) - len(wanted)) as advance:
            for batch in calibration.measure_sequences(
                subject.model, subject.features, dataset, wanted, config, profile, end_tokens
            ):
                records.append(batch)
                advance(len(batch))
    counted = [record for record in records.rows if record["sequence"] < len(rows)]
    metrics, points = calibration.estimates(counted, profile.lengths)
    return {
        "metrics": {name: _entry(estimate, len(counted)) for name, estimate in metrics.items()},
        "profile": [{"length": length, **_entry(estimate, len(counted))} for length, estimate in points],
        "sequences": len(counted),
        "tokens": int(sum(record["tokens"] for record in counted)),
        "contexts": int(sum(record["contexts"] for record in counted)),
        "profile_contexts": int(sum(record.get("profile_contexts", 0) for record in counted)),
        "features": features,
    }


# What the numbers of a sequence depend on, beside model, feature network and data.
_MEASURED_WITH = """seed context_length packing horizon stride rollouts rollout_temperature anchors answer_only
    document_masks whitening feature_layers feature_pooling feature_normalize profile_lengths profile_stride""".split()  # noqa: SIM905
_MADE_OF = """held_out split_seed limit_documents text_column prompt_column completion_column
    messages_column""".split()  # noqa: SIM905


def calibration_settings(options: EvalOptions) -> tuple[EBFTConfig, calibration.Profile]:
    # Not `EBFTConfig(...)`: transformers would set up devices and processes, in training a second time. Measuring
    # needs the method's settings only.
    config = object.__new__(EBFTConfig)
    for f in fields(EBFTConfig):
        default = f.default_factory() if callable(f.default_factory) else f.default
        object.__setattr__(config, f.name, default)
    chosen = {name: getattr(options, name) for name in _MEASURED_WITH if hasattr(config, name)}
    for name, value in (chosen | {"samples": options.rollouts, "temperature": options.rollout_temperature}).items():
        object.__setattr__(config, name, value)
    config.per_device_eval_batch_size, config.eval_seed = options.calibration_batch_size, options.seed
    check_method(config)
    profile = calibration.Profile(tuple(sorted(options.profile_lengths)), options.profile_stride)
    profile.check(options.context_length)
    return config, profile


def calibration_documents(options: EvalOptions, tokenizer: Any) -> DocumentIndex:
    assert options.calibration_data is not None
    columns = {name: getattr(options, f"{name}_column") for name in ("text", "prompt", "completion", "messages")}
    store = tokenize_source(
        options.calibration_data, tokenizer, options.calibration_split, columns, options.limit_documents
    )
    index = DocumentIndex.of(store)
    return index.split(options.held_out, options.split_seed)[1] if options.held_out else index


def _entry(estimate: Estimate, count: int) -> dict[str, Any]:
    value, error = (x if math.isfinite(x) else None for x in map(float, estimate))  # JSON has no NaN
    return {"value": value, "standard_error": error, "count": count}


# ---- common --------------------------------------------------------------------------------------------------------


def fingerprint(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


@contextmanager
def progress(title: str, total: int, done: int) -> Iterator[Callable[[int], Any]]:
    """A bar on standard error; in a log file, a line at the start."""
    from tqdm.auto import tqdm

    if not sys.stderr.isatty():
        print(f"{title}: {done} of {total} are there", file=sys.stderr)
    with tqdm(total=total, initial=done, desc=title, disable=None) as bar:
        yield bar.update
