"""The task `translation` of `ebft eval`: prompts from its data, and how their completions are scored."""

from __future__ import annotations

from pathlib import Path

from ebft.config.evaluation import EvalOptions
from ebft.errors import ConfigError
from ebft.problems import translation
from ebft.runtime.files import write_jsonl
from ebft.tasks.problem_set import Asked, ProblemSet, Scored
from ebft.tasks.translation_scores import TranslationScoring, score_translations

MAX_NEW_TOKENS = 256


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
    scoring = TranslationScoring(
        target_language=target,
        bleu_tokenize=options.bleu_tokenize,
        comet_model=options.comet_model,
        comet_python=options.comet_python,
    )

    prompts = translation.prompts(pairs, source, target, options.prompt_template or translation.TEMPLATE)

    def score(texts: list[list[str]], file: Path, finishes: list[list[str]]) -> Scored:
        found = score_translations(pairs, texts, scoring)
        write_jsonl(file.with_name(f"{file.stem}.scores.jsonl"), found.pop("sentences"))
        return found

    return ProblemSet(
        "translation",
        [pair.key for pair in pairs],
        {"raw": Asked(prompts, translation.STOP), "chat": Asked(prompts)},
        MAX_NEW_TOKENS,
        score,
    )
