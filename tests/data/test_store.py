from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ebft.data import packing as store_module
from ebft.data.packing import TokenStore, tokenize_rows, tokenize_source
from ebft.data.row_format import RowFormat, encode
from ebft.errors import DataError
from tests.tiny_tokenizer import PAD, byte_tokenizer

ROWS = [{"text": text, "body": text.upper()} for text in ("one", "two", "three", "four", "five")]


def write(file: Path, rows: list[dict[str, str]]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "rows.jsonl", ROWS)


def texts(store: TokenStore) -> list[str]:
    ends = zip(store.offsets[:-1], store.offsets[1:], strict=True)
    return [byte_tokenizer().decode(store.tokens[begin : end - 1].tolist()) for begin, end in ends]


def stores(cache: Path) -> list[Path]:
    return sorted((cache / "tokens").iterdir()) if (cache / "tokens").exists() else []


def test_a_store_holds_what_encode_gives_for_every_row(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    rows = [{"prompt": "a" * n, "completion": "b" * (7 - n)} for n in range(1, 7)]
    documents = [encode(row, tokenizer) for row in rows]
    for store in tokenize_source(str(write(tmp_path / "qa.jsonl", rows)), tokenizer), tokenize_rows(rows, tokenizer):
        assert len(store) == len(rows)
        assert store.lengths.tolist() == [len(d.tokens) for d in documents]
        assert store.tokens.tolist() == [token for d in documents for token in d.tokens]
        assert store.answers.astype(bool).tolist() == [answer for d in documents for answer in d.answers]
        assert store.answer_counts.tolist() == [sum(d.answers) for d in documents]
        assert isinstance(store.tokens, np.memmap)


def test_limit_and_columns(file: Path) -> None:
    assert texts(tokenize_source(str(file), byte_tokenizer(), limit=2)) == ["one", "two"]
    named = tokenize_source(str(file), byte_tokenizer(), row_format=RowFormat(text="body"))
    assert texts(named)[:2] == ["ONE", "TWO"]


def test_the_key_changes_with_everything_the_tokens_depend_on(file: Path, cache: Path) -> None:
    ways: list[tuple[Any, dict[str, Any]]] = [
        (byte_tokenizer(), {}),
        (byte_tokenizer(), {"limit": 2}),
        (byte_tokenizer(), {"row_format": RowFormat(text="body")}),
        (byte_tokenizer(), {"split": "validation"}),
        (byte_tokenizer(extra_tokens=1), {}),
        (byte_tokenizer(end=PAD), {}),
        (byte_tokenizer(chat_template="{{ messages }}"), {}),
    ]
    for number, (chosen, options) in enumerate(ways, 1):
        tokenize_source(str(file), chosen, **options)
        assert len(stores(cache)) == number
    made = [path.stat().st_ctime_ns for path in stores(cache)]
    for chosen, options in [*ways, (byte_tokenizer(pad=PAD), {})]:  # padding does not matter
        tokenize_source(str(file), chosen, **options)
    assert [path.stat().st_ctime_ns for path in stores(cache)] == made, "nothing is tokenised again"
    before = file.stat()
    write(file, [{"text": "eno"}, *ROWS[1:]])
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))  # of the same size: only the time tells
    assert texts(tokenize_source(str(file), byte_tokenizer()))[0] == "eno"


def test_what_a_killed_process_left_is_not_taken_for_whole(
    file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(source: str, split: str) -> Iterator[dict[str, Any]]:
        yield from ROWS[:3]
        raise RuntimeError("killed")

    for tidies_up in (True, False):  # an exception does, a kill does not
        with monkeypatch.context() as patch:
            patch.setattr(store_module, "read_rows", broken)
            if not tidies_up:
                patch.setattr(store_module.shutil, "rmtree", lambda *args, **kwargs: None)
            with pytest.raises(RuntimeError):
                tokenize_source(str(file), byte_tokenizer())
        assert len(stores(cache)) == (not tidies_up)
    assert texts(tokenize_source(str(file), byte_tokenizer())) == [row["text"] for row in ROWS]


def test_a_second_process_that_was_first_is_accepted(file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(source: str, split: str) -> Iterator[dict[str, Any]]:
        patch.undo()
        tokenize_source(str(file), byte_tokenizer())
        yield from ROWS

    with monkeypatch.context() as patch:
        patch.setattr(store_module, "read_rows", slow)
        store = tokenize_source(str(file), byte_tokenizer())
    assert texts(store) == [row["text"] for row in ROWS]
    assert len(stores(cache)) == 1


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", '{"text": "a"}\n{"body": "b"}\n', "row 2: a row needs 'text'.*it has 'body'"),
        ("a.jsonl", "\n \n", "no rows"),
        ("a.csv", "text\n", "no rows"),
    ],
)
def test_bad_rows_leave_nothing(tmp_path: Path, cache: Path, name: str, content: str, words: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=f"{name}: {words}"):
        tokenize_source(str(tmp_path / name), byte_tokenizer())
    assert not stores(cache)
