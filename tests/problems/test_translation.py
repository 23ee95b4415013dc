from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ebft.errors import ConfigError, DataError
from ebft.problems import translation
from ebft.problems.translation import Pair, read_pairs
from tests.problems.pairs import PAIRS, write


@pytest.mark.parametrize(
    ("row", "fields"),
    [
        ({"translation": {"de": "Hallo", "en": "Hello"}}, ("de", "en")),
        ({"de": "Hallo", "en": "Hello"}, ("de", "en")),
        ({"src": "Hallo", "ref": "Hello"}, (None, None)),
        ({"source": "Hallo", "references": ["Hello"]}, (None, None)),
    ],
)
def test_rows_of_all_kinds(row: dict[str, Any], fields: tuple[str | None, str | None], tmp_path: Path) -> None:
    file = write(tmp_path / "rows.jsonl", [row, {**row, "id": "x-7"}])
    assert read_pairs(file, "test", *fields) == [Pair("1", "Hallo", ["Hello"]), Pair("x-7", "Hallo", ["Hello"])]


def test_prompts_name_the_languages() -> None:
    german, english = (translation.language_name(None, code, "--x") for code in ("de", "en"))
    assert translation.prompts(PAIRS[:1], german, english) == [
        "Translate this from German to English:\nGerman: Das Haus ist alt.\nEnglish:"
    ]
    assert translation.prompts(PAIRS[:1], "A", "B", "{source} =>") == ["Das Haus ist alt. =>"]
    braces = [Pair("1", "a {source} {b}", ["x"])]
    assert translation.prompts(braces, "A", "B", "{source} =>") == ["a {source} {b} =>"]
    assert translation.language_name("Swiss German", "src", "--x") == "Swiss German"
    with pytest.raises(ConfigError, match="give --source-language"):
        translation.language_name(None, "src", "--source-language")
    for template, message in {
        "{text}": "asks for 'text'; it may use source",
        "hello": r"has no \{source\}",
        "{source": "cannot be read",
    }.items():
        with pytest.raises(ConfigError, match=message):
            translation.prompts(PAIRS, "A", "B", template)


class TestFieldsOfAPair:
    @pytest.mark.parametrize(
        ("row", "given", "expected"),
        [
            ({"de": "Hallo", "en": "Hello"}, (None, None), ("de", "en")),
            ({"en": "Hello", "de": "Hallo"}, (None, None), ("en", "de")),
            ({"task_id": "a", "de": "Hallo", "en": ["Hello", "Hi"]}, (None, None), ("de", "en")),
            ({"translation": {"de": "Hallo", "en": "Hello"}, "id": 1}, (None, None), ("de", "en")),
            ({"en": "Hello", "de": "Hallo"}, (None, "en"), ("de", "en")),
            ({"en": "Hello", "de": "Hallo", "fr": "Salut"}, (None, None), (None, None)),
            ({"source": "Hallo", "reference": "Hello"}, (None, None), (None, None)),  # known by their names
        ],
    )
    def test_two_texts_are_source_and_reference(
        self, tmp_path: Path, row: dict[str, Any], given: tuple[Any, Any], expected: tuple[Any, Any]
    ) -> None:
        file = tmp_path / "pairs.jsonl"
        file.write_text(json.dumps(row) + "\n")
        assert translation.find_fields(str(file), "test", *given) == expected


def test_rows_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="two rows have the id '1'"):
        read_pairs(write(tmp_path / "twice.jsonl", [{"id": 1, "src": "a", "ref": "b"}] * 2))
    bad = write(tmp_path / "bad.jsonl", [{"src": "a", "ref": "b"}, {"src": "a", "reff": "b"}])
    with pytest.raises(DataError, match=r"line 2 has none of the fields refs, .*it has 'src', 'reff'"):
        read_pairs(bad)
    with pytest.raises(DataError, match=r"line 1 has no field 'en'; it has 'src', 'ref'"):
        read_pairs(bad, target_field="en")
