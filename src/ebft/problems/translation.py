"""Translation: sentences with their references from any parallel data, and the prompts that ask for a translation.

Rows are `{"translation": {"en": ..., "de": ...}}`, flat fields named by language (`{"en": ..., "de": ...}`), or
`src` and `ref` (or `refs`, a list). The scores are in `ebft.evaluate.translation_scores`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from string import Formatter

from ebft.errors import ConfigError, DataError
from ebft.problems.problem import Record, read_records

SOURCE_FIELDS = ("src", "source", "source_text")
TARGET_FIELDS = ("refs", "ref", "references", "reference", "target", "tgt")
ID_FIELDS = ("task_id", "name", "id")
LANGUAGE_NAMES = {
    "ar": "Arabic", "cs": "Czech", "de": "German", "en": "English", "es": "Spanish", "et": "Estonian", "fi": "Finnish",
    "fr": "French", "ha": "Hausa", "hi": "Hindi", "hr": "Croatian", "is": "Icelandic", "it": "Italian",
    "ja": "Japanese", "ko": "Korean", "lt": "Lithuanian", "lv": "Latvian", "nl": "Dutch", "pl": "Polish",
    "pt": "Portuguese", "ro": "Romanian", "ru": "Russian", "sv": "Swedish", "tr": "Turkish", "uk": "Ukrainian",
    "vi": "Vietnamese", "zh": "Chinese",
}  # fmt: skip
# ALMA's, whose data the paper trains on. One line answers it: the completion ends at the line's end.
TEMPLATE = "Translate this from {source_language} to {target_language}:\n"
TEMPLATE += "{source_language}: {source}\n{target_language}:"
STOP = ("\n",)


@dataclass(frozen=True)
class Pair:
    key: str
    source: str
    references: list[str]


def find_fields(source: str, split: str = "test", given: Sequence[str | None] = (None, None)) -> tuple[str, str]:
    """The fields of source and reference: given, known by their names, or the two texts that a row has."""
    record = _pair_of(next(read_records(source, split), Record(source, {})))
    fields = record.row
    texts = [name for name, value in fields.items() if name not in ID_FIELDS and isinstance(value, str | list)]
    known = (SOURCE_FIELDS, TARGET_FIELDS)
    found = [name or next((n for n in names if n in fields), None) for name, names in zip(given, known, strict=True)]
    left = [name for name in texts if name not in found] if len(texts) == 2 else []
    found = [name or (left.pop(0) if left else None) for name in found]
    for name, names, option in zip(found, known, ("--source-field", "--target-field"), strict=True):
        if name not in fields:
            has = ", ".join(map(repr, fields))
            raise DataError(f"{record.where} has no field {name or names[0]!r}; it has {has}: name one with {option}")
    return str(found[0]), str(found[1])


def read_pairs(source: str, split: str, source_field: str, target_field: str, limit: int | None = None) -> list[Pair]:
    """Sentences with their references, from a file, a folder or a hub name."""
    pairs: dict[str, Pair] = {}
    for number, record in enumerate(islice(read_records(source, split), limit), 1):
        row = _pair_of(record)
        text, is_list = row.text(source_field), isinstance(row.field(target_field, object), list)
        references = row.texts(target_field) if is_list else [row.text(target_field)]
        key = row_id(record) or str(number)
        if key in pairs:
            raise DataError(f"{source}: two rows have the id {key!r}")
        pairs[key] = Pair(key, one_line(text), [one_line(reference) for reference in references])
    return [*pairs.values()]


def _pair_of(record: Record) -> Record:
    inside = record.row.get("translation")
    return Record(record.where, inside) if isinstance(inside, dict) else record


def row_id(record: Record) -> str | None:
    return next((str(record.row[name]) for name in ID_FIELDS if record.row.get(name) is not None), None)


def one_line(text: str) -> str:
    """A translation is a line for sacrebleu: line breaks become spaces, and the ends are trimmed."""
    return " ".join(text.splitlines()).strip()


def language_name(language: str | None, field: str, option: str) -> str:
    """German, for "German", for "de", or for a field named "de"."""
    name = language or (field if field in LANGUAGE_NAMES else None)
    if name is None:
        raise ConfigError(f"the prompt names both languages; give {option} (a name, or a code such as de)")
    return LANGUAGE_NAMES.get(name, name)


def prompts(pairs: Sequence[Pair], source_language: str, target_language: str, template: str = TEMPLATE) -> list[str]:
    names = {"source_language": source_language, "target_language": target_language}
    fields = {name for _, name, _, _ in Formatter().parse(template) if name is not None}
    if not {"source"} <= fields <= {"source", *names}:
        raise ConfigError(f"the prompt template {template!r} must have {{source}}, and may have {', '.join(names)}")
    return [template.format(source=pair.source, **names) for pair in pairs]
