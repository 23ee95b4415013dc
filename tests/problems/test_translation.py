from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ebft.errors import ConfigError, DataError
from ebft.problems import translation
from ebft.problems.translation import Pair, read_pairs
from tests.problems.rows import PAIRS, write


@pytest.mark.parametrize(
    ("row", "given", "expected"),
    [
        ({"de": "Hallo", "en": "Hello"}, (None, None), ("de", "en")),
        ({"task_id": "a", "de": "Hallo", "en": ["Hello", "Hi"]}, (None, None), ("de", "en")),
        ({"translation": {"de": "Hallo", "en": "Hello"}, "id": 1}, (None, None), ("de", "en")),
        ({"en": "Hello", "de": "Hallo"}, (None, "en"), ("de", "en")),
        ({"source": "Hallo", "reference": "Hello", "more": "x"}, (None, None), ("source", "reference")),
    ],
)
def test_the_fields_of_a_pair(row: dict[str, Any], given: Any, expected: tuple[str, str], tmp_path: Path) -> None:
    file = write(tmp_path / "pairs.jsonl", [row])
    assert translation.find_fields(file, "test", given) == expected
    [pair] = read_pairs(file, "test", *expected)
    assert (pair.source, pair.references[0]) in (("Hallo", "Hello"), ("Hello", "Hallo"))


def test_prompts_name_the_languages() -> None:
    german, english = (translation.language_name(None, code, "--x") for code in ("de", "en"))
    assert translation.prompts(PAIRS[:1], german, english) == [
        "Translate this from German to English:\nGerman: Das Haus ist alt.\nEnglish:"
    ]
    braces = [Pair("1", "a {source} {b}", ["x"])]
    assert translation.prompts(braces, "A", "B", "{source} =>") == ["a {source} {b} =>"]
    assert translation.language_name("Swiss German", "src", "--x") == "Swiss German"
    with pytest.raises(ConfigError, match="give --source-language"):
        translation.language_name(None, "src", "--source-language")
    for template in ("{source} {text}", "hello"):
        with pytest.raises(ConfigError, match=r"must have {source}, and may have source_language"):
            translation.prompts(PAIRS, "A", "B", template)


def test_rows_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="two rows have the id '1'"):
        read_pairs(write(tmp_path / "pairs.jsonl", [{"id": 1, "src": "a", "ref": "b"}] * 2), "test", "src", "ref")
    with pytest.raises(DataError, match=r"no field 'src'; it has 'en', 'de', 'fr': name one with --source-field"):
        translation.find_fields(write(tmp_path / "many.jsonl", [{"en": "a", "de": "b", "fr": "c"}]))
