from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ebft.data import store as store_module
from ebft.data.row_format import RowFormat, encode
from ebft.data.store import TokenStore, tokenize_rows, tokenize_source
from ebft.errors import DataError
from tests.tiny_tokenizer import PAD, byte_tokenizer


class Counting:
    """A tokenizer that counts the texts it was given."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.calls = tokenizer, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self.tokenizer(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)


ROWS = [{"text": text, "body": text.upper()} for text in ("one", "two", "three", "four", "five")]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "rows.jsonl", ROWS)


def write(file: Path, rows: list[dict[str, str]]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def texts(store: TokenStore, tokenizer: Any) -> list[str]:
    return [
        tokenizer.decode(store.tokens[begin : end - 1].tolist())
        for begin, end in zip(store.offsets[:-1], store.offsets[1:], strict=True)
    ]


def stores(cache: Path) -> list[Path]:
    return sorted((cache / "tokens").iterdir()) if (cache / "tokens").exists() else []


class TestContent:
    def test_holds_what_encode_gives_for_every_row(self, tmp_path: Path) -> None:
        tokenizer = byte_tokenizer()
        rows = [{"prompt": "a" * n, "completion": "b" * (7 - n)} for n in range(1, 7)]
        store = tokenize_source(str(write(tmp_path / "qa.jsonl", rows)), tokenizer)
        documents = [encode(row, tokenizer) for row in rows]
        assert len(store) == len(rows)
        assert store.lengths.tolist() == [len(d.tokens) for d in documents]
        assert store.tokens.tolist() == [token for d in documents for token in d.tokens]
        assert store.answers.astype(bool).tolist() == [answer for d in documents for answer in d.answers]
        in_memory = tokenize_rows(rows, tokenizer)
        for name in ("tokens", "answers", "offsets"):
            assert np.array_equal(getattr(store, name), getattr(in_memory, name))

    def test_limit_and_columns(self, file: Path) -> None:
        tokenizer = byte_tokenizer()
        assert texts(tokenize_source(str(file), tokenizer, limit=2), tokenizer) == ["one", "two"]
        assert texts(tokenize_source(str(file), tokenizer, row_format=RowFormat(text="body")), tokenizer)[:2] == [
            "ONE",
            "TWO",
        ]


class TestCache:
    def test_second_use_does_not_tokenise_again(self, file: Path) -> None:
        first, second = Counting(byte_tokenizer()), Counting(byte_tokenizer())
        made = tokenize_source(str(file), first)
        found = tokenize_source(str(file), second)
        assert (first.calls, second.calls) == (len(ROWS), 0)
        assert np.array_equal(made.tokens, found.tokens)

    def test_key_changes_with_everything_the_tokens_depend_on(self, file: Path, cache: Path) -> None:
        tokenizer = byte_tokenizer()
        changed_template = byte_tokenizer(chat_template="{{ messages }}")
        ways: list[tuple[Any, dict[str, Any]]] = [
            (tokenizer, {}),
            (tokenizer, {"limit": 2}),
            (tokenizer, {"row_format": RowFormat(text="body")}),
            (tokenizer, {"split": "validation"}),
            (byte_tokenizer(extra_tokens=1), {}),
            (byte_tokenizer(end=PAD), {}),
            (changed_template, {}),
        ]
        for number, (chosen, options) in enumerate(ways, 1):
            tokenize_source(str(file), chosen, **options)
            assert len(stores(cache)) == number
        for chosen, options in [*ways, (byte_tokenizer(pad=PAD), {})]:  # padding does not matter
            tokenize_source(str(file), chosen, **options)
        assert len(stores(cache)) == len(ways)

    def test_changed_file_is_tokenised_again(self, file: Path) -> None:
        tokenizer = byte_tokenizer()
        tokenize_source(str(file), tokenizer)
        before = file.stat()
        write(file, [{"text": "eno"}, *ROWS[1:]])
        # Same size: only the time tells.
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
        assert texts(tokenize_source(str(file), tokenizer), tokenizer)[0] == "eno"


class TestCutOff:
    def test_what_a_killed_process_left_is_not_taken_for_whole(
        self, file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(source: str, split: str) -> Iterator[dict[str, Any]]:
            yield from ROWS[:3]
            raise RuntimeError("killed")

        with monkeypatch.context() as patch:
            patch.setattr(store_module, "read_rows", broken)
            # A killed process does not tidy up.
            patch.setattr(store_module.shutil, "rmtree", lambda *args, **kwargs: None)
            with pytest.raises(RuntimeError):
                tokenize_source(str(file), byte_tokenizer())
        assert len(stores(cache)) == 1
        store = tokenize_source(str(file), byte_tokenizer())
        assert texts(store, byte_tokenizer()) == [row["text"] for row in ROWS]

    def test_a_second_process_that_was_first_is_accepted(
        self, file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tokenizer = byte_tokenizer()

        def slow(source: str, split: str) -> Iterator[dict[str, Any]]:
            patch.undo()
            tokenize_source(str(file), tokenizer)
            yield from ROWS

        with monkeypatch.context() as patch:
            patch.setattr(store_module, "read_rows", slow)
            store = tokenize_source(str(file), tokenizer)
        assert texts(store, tokenizer) == [row["text"] for row in ROWS]
        assert len(stores(cache)) == 1


class TestErrors:
    def test_bad_row_is_named_by_source_and_number(self, tmp_path: Path, cache: Path) -> None:
        file = write(tmp_path / "rows.jsonl", [{"text": "a"}, {"body": "b"}])
        with pytest.raises(DataError, match=r"rows\.jsonl: row 2: a row needs 'text'.*it has 'body'"):
            tokenize_source(str(file), byte_tokenizer())
        assert not stores(cache)

    @pytest.mark.parametrize(("name", "content"), [("a.jsonl", "\n \n"), ("a.json", "[]"), ("a.csv", "text\n")])
    def test_file_without_rows(self, tmp_path: Path, cache: Path, name: str, content: str) -> None:
        (tmp_path / name).write_text(content)
        with pytest.raises(DataError, match=f"{name}: no rows"):
            tokenize_source(str(tmp_path / name), byte_tokenizer())
        assert not stores(cache)
