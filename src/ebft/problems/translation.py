"""Translation: sentences with their references from any parallel data, and the prompts that ask for a translation.

Rows are `{"translation": {"en": ..., "de": ...}}`, flat fields named by language (`{"en": ..., "de": ...}`), or
`src` and `ref` (or `refs`, a list). The scores are in `ebft.evaluate.translation_scores`.
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ebft.data.row_format import Row
from ebft.data.rows import read_rows
from ebft.errors import ConfigError, DataError
from ebft.problems.problem import Record, read_records

SOURCE_FIELDS = ("src", "source", "source_text")
TARGET_FIELDS = ("refs", "ref", "references", "reference", "target", "tgt")
ID_FIELDS = ("task_id", "name", "id")
LANGUAGE_NAMES = {
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
    for record in itertools.islice(translation_rows(source, split), limit):
        where, row = record.where, record.row
        fields = row["translation"] if isinstance(row.get("translation"), dict) else row
        text = _field(fields, source_field, SOURCE_FIELDS, "--source-field", where)
        target = _field(fields, target_field, TARGET_FIELDS, "--target-field", where)
        references = target if isinstance(target, list) else [target]
        if not isinstance(text, str) or not references or not all(isinstance(r, str) for r in references):
            raise DataError(f"{where}: source and references must be texts; got {text!r} and {target!r}")
        number = where.rpartition(" ")[2]
        pairs.append(Pair(row_id(row) or number, one_line(text), [one_line(r) for r in references]))
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
    record = next(translation_rows(source, split), None)
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


def translation_rows(source: str, split: str) -> Iterator[Record]:
    """Rows with their places: JSONL by line, anything else that `ebft` reads by row."""
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


def row_id(row: Row) -> str | None:
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
    name = language or (field if field in LANGUAGE_NAMES else None)
    if name is None:
        raise ConfigError(f"the prompt names both languages; give {option} (a name, or a code such as de)")
    return LANGUAGE_NAMES.get(name, name)


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
