"""Translation: prompts from any parallel data; BLEU and chrF by sacrebleu, COMET by unbabel-comet; best of k.

Rows are `{"translation": {"en": ..., "de": ...}}`, flat fields named by language (`{"en": ..., "de": ...}`), or
`src` and `ref` (or `refs`, a list). What is measured of one translation per sentence: corpus BLEU and chrF, exactly as
the `sacrebleu` command, and the means of sentence BLEU and chrF. Of n samples, for each k:

- `best_of_k_sentence_bleu` (and chrf, comet): for each sentence the expected maximum of the metric over k of the n
  samples drawn without replacement, averaged over sentences: sum_i s_(i) C(i-1, k-1) / C(n, k) over the sorted scores,
  unbiased for k fresh samples as pass@k is;
- `best_of_k_bleu` (and chrf): corpus scores of the sentences picked by their own sentence score. The samples are dealt
  into floor(n/k) groups of k in the order they were made, one corpus is picked from each, and the scores averaged.
"""

from __future__ import annotations

import itertools
import math
import string
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ebft
from ebft.data.rows import Row, read_rows
from ebft.errors import ConfigError, DataError
from ebft.problems.records import Record, read_records
from ebft.tasks import comet

K = (1, 4, 16)
SOURCE_FIELDS = ("src", "source", "source_text")
TARGET_FIELDS = ("refs", "ref", "references", "reference", "target", "tgt")
ID_FIELDS = ("task_id", "name", "id")
LANGUAGES = {
    "ar": "Arabic",
    "cs": "Czech",
    "de": "German",
    "en": "English",
    "es": "Spanish",
    "et": "Estonian",
    "fi": "Finnish",
    "fr": "French",
    "ha": "Hausa",
    "hi": "Hindi",
    "hr": "Croatian",
    "is": "Icelandic",
    "it": "Italian",
    "ja": "Japanese",
    "ko": "Korean",
    "lt": "Lithuanian",
    "lv": "Latvian",
    "nl": "Dutch",
    "pl": "Polish",
    "pt": "Portuguese",
    "ro": "Romanian",
    "ru": "Russian",
    "sv": "Swedish",
    "tr": "Turkish",
    "uk": "Ukrainian",
    "vi": "Vietnamese",
    "zh": "Chinese",
}
# ALMA's, whose data the paper trains on. One line answers it: the completion ends at the line's end.
TEMPLATE = (
    "Translate this from {source_language} to {target_language}:\n{source_language}: {source}\n{target_language}:"
)
STOP = ("\n",)


@dataclass(frozen=True)
class Pair:
    key: str
    source: str
    references: list[str]


@dataclass(frozen=True)
class Scoring:
    """
    Args:
        target_language: a code such as `zh`; sacrebleu has tokenizers of their own for zh, ja and ko.
        bleu_tokenize: sacrebleu's tokenizer, if not the one it has for the language.
        comet_model: name or path of a COMET model; None: no COMET.
        comet_python: interpreter of an environment that has unbabel-comet, if not this one.
        bootstrap: resamples for the standard errors of corpus scores; 0: none.
    """

    target_language: str = ""
    bleu_tokenize: str | None = None
    comet_model: str | None = None
    comet_python: str | None = None
    bootstrap: int = 1000


def read_pairs(
    source: str,
    split: str = "test",
    source_field: str | None = None,
    target_field: str | None = None,
    limit: int | None = None,
) -> list[Pair]:
    """Sentences with their references, from a file, a folder or a hub name."""
    source_field, target_field = find_fields(source, split, source_field, target_field)
    pairs = []
    for record in itertools.islice(_records(source, split), limit):
        where, row = record.where, record.row
        fields = row["translation"] if isinstance(row.get("translation"), dict) else row
        text = _field(fields, source_field, SOURCE_FIELDS, "--source-field", where)
        target = _field(fields, target_field, TARGET_FIELDS, "--target-field", where)
        references = target if isinstance(target, list) else [target]
        if not isinstance(text, str) or not references or not all(isinstance(r, str) for r in references):
            raise DataError(f"{where}: source and references must be texts; got {text!r} and {target!r}")
        number = where.rpartition(" ")[2]
        pairs.append(Pair(_id(row) or number, one_line(text), [one_line(r) for r in references]))
    if not pairs:
        raise DataError(f"{source}: no rows")
    if twice := _first_repeated(pair.key for pair in pairs):
        raise DataError(f"{source}: two rows have the id {twice!r}")
    return pairs


def find_fields(
    source: str, split: str = "test", source_field: str | None = None, target_field: str | None = None
) -> tuple[str | None, str | None]:
    """The fields of a language pair. Where nothing names them and a row has just two texts, such as `de` and `en`, the
    first is the source and the second the reference."""
    if source_field and target_field:
        return source_field, target_field
    record = next(_records(source, split), None)
    if record is None:
        return source_field, target_field
    row = record.row
    fields = row["translation"] if isinstance(row.get("translation"), dict) else row
    texts = [name for name, value in fields.items() if name not in ID_FIELDS and isinstance(value, (str, list))]
    others = [name for name in texts if name not in (source_field, target_field)]
    named = [name for name in texts if name in (*SOURCE_FIELDS, *TARGET_FIELDS)]
    if len(texts) == 2 and not named:
        if source_field is None and target_field is None:
            return texts[0], texts[1]
        if len(others) == 1:
            return source_field or others[0], target_field or others[0]
    return source_field, target_field


def _records(source: str, split: str) -> Iterator[Record]:
    """Rows with where they stand: JSONL by line, anything else that `ebft` reads by row."""
    path = Path(source).expanduser()
    if path.is_file() and path.suffix in (".jsonl", ".ndjson", ".gz"):
        yield from read_records(source, split)
    else:
        for number, row in enumerate(read_rows(source, split), 1):
            yield Record(f"{source}: row {number}", row)


def _field(fields: Row, given: str | None, known: Sequence[str], option: str, where: str) -> Any:
    name = given or next((name for name in known if name in fields), None)
    if name is not None and fields.get(name) is not None:
        return fields[name]
    missing = f"no field {name!r}" if name is not None else f"none of the fields {', '.join(known)}"
    raise DataError(f"{where} has {missing}; it has {', '.join(map(repr, fields)) or 'none'}: name one with {option}")


def _id(row: Row) -> str | None:
    return next((str(row[name]) for name in ID_FIELDS if row.get(name) is not None), None)


def _first_repeated(keys: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for key in keys:
        if key in seen:
            return key
        seen.add(key)
    return None


def one_line(text: str) -> str:
    """A translation is a line for sacrebleu: line breaks become spaces, and the ends are trimmed."""
    return " ".join(text.splitlines()).strip()


def language_name(language: str | None, field: str | None, option: str) -> str:
    """German, for "German", for "de", or for a field named "de"."""
    name = language or (field if field in LANGUAGES else None)
    if name is None:
        raise ConfigError(f"the prompt names both languages; give {option} (a name, or a code such as de)")
    return LANGUAGES.get(name, name)


def prompts(pairs: Sequence[Pair], source_language: str, target_language: str, template: str = TEMPLATE) -> list[str]:
    names = {"source": "", "source_language": source_language, "target_language": target_language}
    try:
        used = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
    except ValueError as error:
        raise ConfigError(f"the prompt template {template!r} cannot be read: {error}") from None
    if unknown := used - names.keys():
        raise ConfigError(f"the prompt template asks for {sorted(unknown)[0]!r}; it may use {', '.join(names)}")
    if "source" not in used:
        raise ConfigError("the prompt template has no {source}, so the model would not see what to translate")
    return [template.format(**{**names, "source": pair.source}) for pair in pairs]


def expected_best(scores: Sequence[float], k: int) -> float:
    """The expected maximum of k of the scores, drawn without replacement."""
    n = len(scores)
    if not 1 <= k <= n:
        raise ValueError(f"k={k} must lie between 1 and the number of samples, {n}")
    ways = math.comb(n, k)
    return math.fsum(s * (math.comb(i, k - 1) / ways) for i, s in enumerate(sorted(scores)))


def evaluate(pairs: Sequence[Pair], texts: Sequence[Sequence[str]], scoring: Scoring) -> dict[str, Any]:
    """Scores of the translations of each pair. One for each: `bleu` and so on; several: `best_of_k_...` as well.

    Returns {"metrics": {name: {"value", "standard_error", "count"}}, "signatures", "sentences": scores of each}.
    """
    texts = [[one_line(text) for text in of_pair] for of_pair in texts]
    fewest = min(map(len, texts))
    sentence = _sentence_scores(pairs, texts, scoring)
    metrics: dict[str, Any] = {}
    signatures: dict[str, str] = {}
    if max(map(len, texts)) == 1:
        for name in ("bleu", "chrf"):
            metrics[name], signatures[name] = _corpus(name, [t[0] for t in texts], pairs, scoring)
        for name, scores in sentence.items():
            metrics[name] = _mean([of_pair[0] for of_pair in scores])
    else:
        for k in (k for k in K if k <= fewest):
            for name in ("bleu", "chrf"):
                picked = _picked(texts, sentence[f"sentence_{name}"], k, fewest)
                found = [
                    _corpus(name, corpus, pairs, scoring, bootstrap=place == 0) for place, corpus in enumerate(picked)
                ]
                # The groups share the sentences, so their average errs like one of them, at most.
                value = math.fsum(entry["value"] for entry, _ in found) / len(found)
                metrics[f"best_of_{k}_{name}"] = {**found[0][0], "value": value}
                signatures[name] = found[0][1]
            for name, scores in sentence.items():
                metrics[f"best_of_{k}_{name}"] = _mean([expected_best(of_pair, k) for of_pair in scores])
    rows = [
        {"task_id": pair.key, "sample": number, **{name: scores[place][number] for name, scores in sentence.items()}}
        for place, pair in enumerate(pairs)
        for number in range(len(texts[place]))
    ]
    return {"metrics": metrics, "signatures": signatures, "sentences": rows}


def _sentence_scores(
    pairs: Sequence[Pair], texts: Sequence[Sequence[str]], scoring: Scoring
) -> dict[str, list[list[float]]]:
    bleu, chrf = _metric("bleu", scoring, sentence=True), _metric("chrf", scoring, sentence=True)
    found = {
        name: [
            [metric.sentence_score(t, p.references).score for t in of_pair]
            for p, of_pair in zip(pairs, texts, strict=True)
        ]
        for name, metric in (("sentence_bleu", bleu), ("sentence_chrf", chrf))
    }
    if scoring.comet_model is not None:
        triples = [(p.source, t, r) for p, of in zip(pairs, texts, strict=True) for t in of for r in p.references]
        scores = iter(comet.scores(triples, scoring.comet_model, scoring.comet_python))
        # COMET takes one reference: with several, a translation has the mean of its scores.
        found["comet"] = [
            [math.fsum(itertools.islice(scores, len(p.references))) / len(p.references) for _ in of]
            for p, of in zip(pairs, texts, strict=True)
        ]
    return found


def _picked(texts: Sequence[Sequence[str]], scores: Sequence[Sequence[float]], k: int, fewest: int) -> list[list[str]]:
    """One corpus from each group of k samples, every sentence the best of its group by its own score."""
    return [
        [
            max(zip(s[start : start + k], t[start : start + k], strict=True), key=lambda pair: pair[0])[1]
            for t, s in zip(texts, scores, strict=True)
        ]
        for start in range(0, fewest - k + 1, k)
    ]


def _metric(name: str, scoring: Scoring, sentence: bool = False) -> Any:
    try:
        from sacrebleu.metrics import BLEU, CHRF
    except ImportError:
        raise ConfigError("translation needs sacrebleu; install it with `pip install sacrebleu`") from None
    if name == "chrf":
        return CHRF()
    language = next((code for code, full in LANGUAGES.items() if scoring.target_language in (code, full)), "")
    try:
        # effective_order: a short sentence without any 4-gram would otherwise score next to nothing.
        return BLEU(tokenize=scoring.bleu_tokenize, trg_lang=language, effective_order=sentence)
    except (KeyError, ImportError, RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"sacrebleu's tokenizer {scoring.bleu_tokenize or language!r} cannot be used: {error}"
        ) from None


def _corpus(
    name: str, texts: list[str], pairs: Sequence[Pair], scoring: Scoring, bootstrap: bool = True
) -> tuple[dict[str, Any], str]:
    """The score of the `sacrebleu` command and its signature; the standard error is the bootstrap's."""
    most = max(len(pair.references) for pair in pairs)
    # One stream per reference; sentences with fewer have None in the others, which sacrebleu leaves out.
    streams = [[p.references[i] if i < len(p.references) else None for p in pairs] for i in range(most)]
    metric = _metric(name, scoring)
    value = float(metric.corpus_score(texts, streams).score)
    signature = str(metric.get_signature())
    error = None
    if bootstrap and scoring.bootstrap and len(pairs) > 1:
        error = _bootstrap_error(_metric(name, scoring), texts, streams, scoring.bootstrap)
    return {"value": value, "standard_error": error, "count": len(pairs)}, signature


def _bootstrap_error(metric: Any, texts: list[str], streams: Any, times: int) -> float:
    """The spread of the score over corpora drawn from this one with replacement, always the same draws.

    sacrebleu's own bootstrap gives half of a 95 % interval, holds all draws at once, and fails on scores of 0.
    """
    import numpy as np

    statistics = np.array(metric._extract_corpus_statistics(texts, streams), dtype=np.float64)
    random = np.random.default_rng(12345)
    scores = []
    for _ in range(times):
        drawn = statistics[random.integers(len(statistics), size=len(statistics))].sum(0)
        scores.append(float(metric._compute_score_from_stats(drawn.tolist()).score))
    return float(np.std(scores, ddof=1))


def _mean(values: Sequence[float]) -> dict[str, Any]:
    mean = math.fsum(values) / len(values)
    error = None
    if len(values) > 1:
        error = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values))
    return {"value": mean, "standard_error": error, "count": len(values)}


def score(
    problems_path: str,
    samples_path: str,
    source_field: str | None = None,
    target_field: str | None = None,
    scoring: Scoring | None = None,
) -> dict[str, Any]:
    """Score translations made elsewhere: JSONL with `task_id` (or `name`, `id`) and `completion`.

    Problems without ids are numbered by line, from 1. Several completions of a task give best-of-k. The fields of a
    pair such as `de` and `en` are found if there are just these two (`find_fields`).
    """
    source_field, target_field = find_fields(problems_path, "test", source_field, target_field)
    pairs = read_pairs(problems_path, source_field=source_field, target_field=target_field)
    known: dict[str, list[str]] = {pair.key: [] for pair in pairs}
    for record in _records(samples_path, "test"):
        where, row = record.where, record.row
        key = _id(row)
        if key is None:
            raise DataError(f"{where} has no field 'task_id' (or 'name'); it has {', '.join(map(repr, row)) or 'none'}")
        if not isinstance(row.get("completion"), str):
            raise DataError(f"{where} has no text in the field 'completion'")
        if key not in known:
            raise DataError(f"{where} is for the unknown task {key!r}; {problems_path} has {_some(list(known))}")
        known[key].append(row["completion"])
    if missing := [key for key, texts in known.items() if not texts]:
        raise DataError(f"{samples_path} has no sample for {len(missing)} of {len(known)} tasks: {_some(missing)}")
    scoring = scoring or Scoring()
    if not scoring.target_language and target_field in LANGUAGES:
        scoring = replace(scoring, target_language=target_field)
    found = evaluate(pairs, list(known.values()), scoring)
    return {
        **found,
        "counts": {"problems": len(pairs), "samples": sum(map(len, known.values()))},
        "settings": {"problems": problems_path, "samples": samples_path, **asdict(scoring)},
        "versions": {"ebft": ebft.__version__, "sacrebleu": version("sacrebleu")},
    }


def _some(keys: Sequence[str]) -> str:
    return ", ".join(keys[:3]) + (", ..." if len(keys) > 3 else "")
