"""Rows of files, folders and the data that every machine has."""

import ast
import csv
import itertools
import json
import os
import re
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow
import pyarrow.parquet
import pytest

from ebft.data import rows
from ebft.data.rows import TOY_SIZES, check_source, contents, read_rows
from ebft.errors import DataError
from ebft.problems.catalog import load_problems
from tests.baselines.runs import write_rows

ROWS = [{"prompt": "1+1=", "completion": "2"}, {"prompt": 'a "quoted"\nline', "completion": "é, ü"}]


def read(source: Path | str, split: str = "train") -> list[dict[str, Any]]:
    return list(read_rows(str(source), split))


def test_json_and_parquet(tmp_path: Path) -> None:
    for suffix in ("jsonl", "ndjson", "json"):
        assert read(write_rows(tmp_path / f"rows.{suffix}", ROWS)) == ROWS
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "a"}\n\n  \n{"text": "b"}', encoding="utf-8-sig")  # with a byte order mark
    assert read(file) == [{"text": "a"}, {"text": "b"}]
    (tmp_path / "rows.json").write_text("\n  " + json.dumps(ROWS, indent=2))
    assert read(tmp_path / "rows.json") == ROWS
    many = [{"messages": [{"role": "user", "content": str(number)}]} for number in range(2500)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(many), tmp_path / "rows.parquet")
    assert read(tmp_path / "rows.parquet") == many


@pytest.mark.parametrize(("suffix", "delimiter"), [("csv", ","), ("csv", ";"), ("csv", "\t"), ("tsv", "\t")])
def test_csv_and_tsv(tmp_path: Path, suffix: str, delimiter: str) -> None:
    long = [*ROWS, {"prompt": "word " * 50_000, "completion": "longer than the csv module allows"}]
    with (tmp_path / f"rows.{suffix}").open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, list(long[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(long)
    assert read(tmp_path / f"rows.{suffix}") == long
    (tmp_path / "one.csv").write_text("text\nhello\n", encoding="utf-8-sig")  # with a byte order mark
    assert read(tmp_path / "one.csv") == [{"text": "hello"}]


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    for name in ("b.txt", "a.txt", "inner/c.txt", "picture.png"):
        (tmp_path / name).write_text(name)
    assert [row["text"] for row in read(tmp_path)] == ["a.txt", "b.txt", "inner/c.txt"]
    for name in ("train-0001", "train-0000", "test_a", "training"):
        write_rows(tmp_path / f"{name}.jsonl", [{"text": name}])
    assert [row["text"] for row in read(tmp_path, "train")] == ["train-0000", "train-0001"]
    assert [row["text"] for row in read(tmp_path, "test")] == ["test_a"]
    with pytest.raises(DataError, match="no files of the split 'validation'; there is 'train', 'test'"):
        read(tmp_path, "validation")  # never training files instead
    (tmp_path / "program").mkdir()
    for name in ("test_model", "train"):  # whose modules are no splits
        (tmp_path / "program" / f"{name}.py").write_text(name, encoding="utf-8")
    assert read(tmp_path / "program") == [{"text": "test_model"}, {"text": "train"}]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("rows.jsonl", "", "the file is empty"),
        ("rows.jsonl", '{"text": "a"}\n\n{"text": "b"\n', "line 3 is not JSON"),
        *((f"rows.{kind}", '[{"text": "café"}]'.encode("latin1"), "UTF-8") for kind in ("jsonl", "csv", "txt")),
        ("rows.parquet", "no parquet", "not a parquet file"),
        ("rows.jsonl", '{"a": "b"}\n{"a": "\\ud83d"}', "line 2 is not JSON .*surrogates not allowed"),
        ("rows.csv", 'text\na\n"b\nc\n', "unexpected end of data"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_broken_files(tmp_path: Path, name: str, content: str | bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(DataError, match=f"{name}: .*{words}"):
        read(tmp_path / name)


def test_what_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("nothing.jsonl", "./nothing", "~/no-such-folder-here"):
        with pytest.raises(DataError, match=f"{name}: no such file or folder"):
            read(name)
    with pytest.raises(DataError, match=r"no data files in this folder; expected one of \.jsonl"):
        read(tmp_path)


def test_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets, "load_dataset", Mock(side_effect=ConnectionError))
    monkeypatch.setattr(rows, "hub_unreachable", lambda: "the hub is away")
    for check in (read, check_source):
        with pytest.raises(DataError, match=r"someone/somedata is no file.*: the hub is away; give a local copy"):
            check("someone/somedata")
    monkeypatch.setattr(rows, "hub_unreachable", lambda: pytest.fail("asked"))
    check_source("stdlib-code")


def test_contents_change_with_the_text_and_the_files_of_the_split(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "train.jsonl", ROWS)
    first = contents(str(file))
    os.utime(file, ns=(1, 1))
    write_rows(tmp_path / "validation.jsonl", ROWS)
    assert contents(str(tmp_path)) == first, "copied or moved"
    write_rows(tmp_path / "train-1.jsonl", ROWS)
    assert contents(str(tmp_path)) != first
    write_rows(file, ROWS[1:])
    assert contents(str(file)) != first
    assert contents("stdlib-code") == ["stdlib-code", sys.version]


def test_functions_of_the_standard_library() -> None:
    """Signature and docstring are the prompt, the rest is the completion."""
    for row in itertools.islice(read_rows("stdlib-functions"), 100):
        # The prompt alone is a whole function: the docstring closes it, and nothing of the body is in it.
        (prompt,), (whole,) = ast.parse(row["prompt"]).body, ast.parse(row["prompt"] + row["completion"]).body
        for function in (prompt, whole):
            assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
            assert ast.get_docstring(function)
        assert len(prompt.body) == 1 < len(whole.body), row["source"]
    found = next(row["text"] for row in read_rows("stdlib-code") if row["source"] == "ast.py")
    assert found == Path(ast.__file__).read_text("utf-8")


STEPS = {"plus": lambda x, n: x + n, "minus": lambda x, n: x - n, "times": lambda x, n: x * n}


def test_the_words_of_a_toy_function_describe_it() -> None:
    """Computed from the words, step by step, not from the expression. No two splits share one."""
    rows = {split: read("toy-functions", split) for split in TOY_SIZES}
    for row in rows["train"][:100]:
        space: dict[str, Any] = {}
        exec(row["prompt"] + row["completion"] + row["test"], space)
        function = space[row["entry_point"]]
        space["check"](function)
        for x in (-3, 0, 11):
            expected = x
            for step, number in re.findall(r"(plus|minus|times) (\d+)", row["prompt"]):
                expected = STEPS[step](expected, int(number))
            assert function(x) == expected
    words = {split: {row["prompt"].partition('"""')[2] for row in found} for split, found in rows.items()}
    assert {split: len(found) for split, found in words.items()} == TOY_SIZES
    for one, other in itertools.combinations(words.values(), 2):
        assert not one & other
    assert contents("toy-functions", "train") != contents("toy-functions", "test")
    assert [problem.task_id for problem in load_problems("humaneval", "toy-functions")][:1] == ["test/0"]
