from __future__ import annotations

import csv
import json
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from ebft.data import rows
from ebft.data.rows import check_hub, contents, count_rows, fingerprint, read_rows
from ebft.errors import DataError
from ebft.runtime.machine import hub_unreachable

ROWS = [{"prompt": "1+1=", "completion": "2"}, {"prompt": 'a "quoted"\nline', "completion": "é, ü"}]


def write_jsonl(file: Path, rows: list[Any]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def write_delimited(file: Path, rows: list[dict[str, str]], delimiter: str) -> Path:
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    return file


def read(source: Path | str, split: str = "train") -> list[dict[str, Any]]:
    return list(read_rows(str(source), split))


class TestFiles:
    @pytest.mark.parametrize("suffix", ["jsonl", "ndjson", "json"])
    def test_one_object_a_line(self, tmp_path: Path, suffix: str) -> None:
        assert read(write_jsonl(tmp_path / f"rows.{suffix}", ROWS)) == ROWS

    def test_blank_lines_of_jsonl_are_skipped(self, tmp_path: Path) -> None:
        file = tmp_path / "rows.jsonl"
        file.write_text('\n{"text": "a"}\n\n  \n{"text": "b"}')
        assert read(file) == [{"text": "a"}, {"text": "b"}]

    @pytest.mark.parametrize("before", ["", "\n  "])
    def test_json_array(self, tmp_path: Path, before: str) -> None:
        file = tmp_path / "rows.json"
        file.write_text(before + json.dumps(ROWS, indent=2))
        assert read(file) == ROWS

    def test_parquet(self, tmp_path: Path) -> None:
        rows = [{"messages": [{"role": "user", "content": str(number)}]} for number in range(2500)]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
        assert read(tmp_path / "rows.parquet") == rows

    @pytest.mark.parametrize(("suffix", "delimiter"), [("csv", ","), ("csv", ";"), ("csv", "\t"), ("tsv", "\t")])
    def test_csv_and_tsv(self, tmp_path: Path, suffix: str, delimiter: str) -> None:
        assert read(write_delimited(tmp_path / f"rows.{suffix}", ROWS, delimiter)) == ROWS

    def test_a_csv_field_may_be_a_long_document(self, tmp_path: Path) -> None:
        rows = [{"text": "word " * 50_000}]
        assert read(write_delimited(tmp_path / "rows.csv", rows, ",")) == rows

    def test_byte_order_mark_does_not_become_part_of_the_first_column(self, tmp_path: Path) -> None:
        (tmp_path / "rows.csv").write_text("text\nhello\n", encoding="utf-8-sig")
        (tmp_path / "rows.jsonl").write_text('{"text": "hello"}\n', encoding="utf-8-sig")
        assert read(tmp_path / "rows.csv") == read(tmp_path / "rows.jsonl") == [{"text": "hello"}]

    @pytest.mark.parametrize("suffix", ["txt", "py", "md", "rst"])
    def test_a_text_file_is_one_document(self, tmp_path: Path, suffix: str) -> None:
        file = tmp_path / f"document.{suffix}"
        file.write_text("x = 1\ny = 'é'\n", encoding="utf-8")
        assert read(file) == [{"text": "x = 1\ny = 'é'\n"}]


class TestFolders:
    def test_all_files_in_the_order_of_their_names(self, tmp_path: Path) -> None:
        (tmp_path / "inner").mkdir()
        (tmp_path / "b.txt").write_text("second")
        (tmp_path / "a.txt").write_text("first")
        (tmp_path / "inner" / "c.txt").write_text("third")
        (tmp_path / "picture.png").write_bytes(b"\x89PNG")
        assert [row["text"] for row in read(tmp_path)] == ["first", "second", "third"]

    def test_split_by_file_name(self, tmp_path: Path) -> None:
        for name in ("train-0001", "train-0000", "validation", "test_a", "training"):
            write_jsonl(tmp_path / f"{name}.jsonl", [{"text": name}])
        assert [row["text"] for row in read(tmp_path, "train")] == ["train-0000", "train-0001"]
        assert [row["text"] for row in read(tmp_path, "validation")] == ["validation"]
        assert [row["text"] for row in read(tmp_path, "test")] == ["test_a"]

    def test_a_split_that_is_not_there_never_falls_back_to_another(self, tmp_path: Path) -> None:
        for name in ("train", "test"):
            write_jsonl(tmp_path / f"{name}.jsonl", [{"text": name}])
        with pytest.raises(DataError, match="no files of the split 'validation'; there is 'train', 'test'"):
            read(tmp_path, "validation")

    def test_modules_of_a_program_are_no_splits(self, tmp_path: Path) -> None:
        for name in ("model", "test_model", "train"):
            (tmp_path / f"{name}.py").write_text(name)
        assert [row["text"] for row in read(tmp_path)] == ["model", "test_model", "train"]


class TestErrors:
    @pytest.mark.parametrize("name", ["nothing.jsonl", "folder/nothing.csv", "./nothing", "~/no-such-folder-here"])
    def test_missing_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HOME", str(tmp_path))
        with pytest.raises(DataError, match=f"{name}: no such file or folder"):
            read(name)

    @pytest.mark.parametrize("suffix", ["jsonl", "json", "csv", "parquet", "txt"])
    def test_empty_file(self, tmp_path: Path, suffix: str) -> None:
        (tmp_path / f"rows.{suffix}").touch()
        with pytest.raises(DataError, match=rf"rows\.{suffix}: the file is empty"):
            read(tmp_path / f"rows.{suffix}")

    def test_broken_json_line_is_named_by_its_number(self, tmp_path: Path) -> None:
        file = tmp_path / "rows.jsonl"
        file.write_text('{"text": "a"}\n\n{"text": "b"\n{"text": "c"}\n')
        with pytest.raises(DataError, match=r"rows\.jsonl: line 3 is not valid JSON"):
            read(file)
        file.write_text('{"text": "a\tb"}\n')
        with pytest.raises(DataError, match=r"line 1 is not valid JSON \(Invalid control character at column 12\)"):
            read(file)

    @pytest.mark.parametrize("name", ["rows.json", "rows.jsonl"])
    def test_an_object_over_several_lines(self, tmp_path: Path, name: str) -> None:
        (tmp_path / name).write_text(json.dumps({"data": [{"text": "a"}]}, indent=1), encoding="utf-8-sig")
        with pytest.raises(
            DataError, match=rf"{name}: line 1 begins an object that .*; give a list of rows, .*\(JSONL\)"
        ):
            read(tmp_path / name)

    @pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl", "rows.json"])
    def test_text_that_is_not_utf8(self, tmp_path: Path, name: str) -> None:
        lines = {"csv": "text\na\ncafé\n", "jsonl": '{"text": "a"}\n\n{"text": "café"}\n'}
        content = lines.get(name.split(".")[1], '[{"text": "a"},\n\n{"text": "café"}]\n')
        (tmp_path / name).write_text(content, encoding="latin1")
        with pytest.raises(
            DataError, match=rf"{name}: line 3 is not UTF-8 text; .*`iconv -f latin1 -t utf-8 {name} > new"
        ):
            read(tmp_path / name)
        (tmp_path / name).write_text(content, encoding="utf-16")
        with pytest.raises(DataError, match=rf"{name}: the text is UTF-16.*`iconv -f utf-16 -t utf-8 {name} > new"):
            read(tmp_path / name)

    def test_broken_json_array_is_named_by_file_and_line(self, tmp_path: Path) -> None:
        file = tmp_path / "rows.json"
        file.write_text('[\n{"text": "a"},\n{"text": b}\n]')
        with pytest.raises(DataError, match=r"rows\.json: line 3 is not valid JSON"):
            read(file)

    def test_rows_before_a_broken_line_are_given_first(self, tmp_path: Path) -> None:
        # Reading is lazy: nothing is held, and a limit before the broken line never meets it.
        file = tmp_path / "rows.jsonl"
        file.write_text('{"text": "a"}\n{"text"\n')
        assert next(read_rows(str(file))) == {"text": "a"}

    @pytest.mark.parametrize(
        ("value", "kind"), [("text", "a string"), (3, "a number"), (None, "null"), ([1], "a list")]
    )
    def test_row_that_is_no_object(self, tmp_path: Path, value: Any, kind: str) -> None:
        lines = write_jsonl(tmp_path / "rows.jsonl", [{"text": "a"}, value])
        with pytest.raises(DataError, match=f"line 2 is {kind}, not an object"):
            read(lines)
        array = tmp_path / "rows.json"
        array.write_text(json.dumps([{"text": "a"}, value]))
        with pytest.raises(DataError, match=f"entry 2 is {kind}, not an object"):
            read(array)

    def test_unknown_kind_of_file(self, tmp_path: Path) -> None:
        (tmp_path / "rows.xlsx").write_text("a")
        with pytest.raises(DataError, match=r"rows\.xlsx: unknown file type; use one of \.jsonl"):
            read(tmp_path / "rows.xlsx")

    def test_a_parquet_file_with_a_damaged_name(self, tmp_path: Path) -> None:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{"text": "a"}]), tmp_path / "rows.parquet")
        content = (tmp_path / "rows.parquet").read_bytes()
        (tmp_path / "rows.parquet").write_bytes(content.replace(b"text", b"\xf4ext"))
        with pytest.raises(DataError, match=r"rows\.parquet: not a Parquet file"):
            read(tmp_path / "rows.parquet")

    def test_not_a_parquet_file(self, tmp_path: Path) -> None:
        (tmp_path / "rows.parquet").write_text("certainly no parquet file")
        with pytest.raises(DataError, match=r"rows\.parquet: not a Parquet file"):
            read(tmp_path / "rows.parquet")

    def test_folder_without_data(self, tmp_path: Path) -> None:
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "picture.png").write_bytes(b"\x89PNG")
        with pytest.raises(DataError, match="no data files in this folder"):
            read(tmp_path / "data")
        with pytest.raises(DataError, match="no data files in this folder"):
            fingerprint(str(tmp_path / "data"))

    @pytest.mark.parametrize(
        ("typo", "meant"), [("stdlib-function", "stdlib-functions"), ("stdlib_code", "stdlib-code")]
    )
    def test_near_miss_of_a_builtin_name_suggests_it(
        self, monkeypatch: pytest.MonkeyPatch, typo: str, meant: str
    ) -> None:
        no_hub(monkeypatch)
        with pytest.raises(DataError, match=f"{typo}: not a file.*did you mean '{meant}'"):
            read(typo)

    def test_unknown_hub_name_says_what_can_be_given(self, monkeypatch: pytest.MonkeyPatch) -> None:
        no_hub(monkeypatch)
        words = (
            "someone/somedata: not a file, not in the cache of `datasets`, and HF_HUB_OFFLINE is set; give a local copy"
        )
        with pytest.raises(DataError, match=words):
            read("someone/somedata")
        with pytest.raises(DataError, match=words):
            check_hub("someone/somedata")

    def test_a_hub_that_cannot_be_reached_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        no_hub(monkeypatch)
        monkeypatch.setattr(rows, "hub_unreachable", lambda: "the hub is away")
        with pytest.raises(DataError, match=r"someone/somedata: not a file.*, and the hub is away; give a local copy"):
            read("someone/somedata")

    def test_what_is_here_needs_no_hub(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rows, "hub_unreachable", lambda: pytest.fail("asked"))
        check_hub("stdlib-code")
        check_hub(str(write_jsonl(tmp_path / "rows.jsonl", ROWS)))


def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """As HF_HUB_OFFLINE=1 does, which the libraries read only when they are first imported."""
    import datasets
    import huggingface_hub

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    hub_unreachable.cache_clear()


class TestFingerprint:
    def test_changes_with_content_time_and_files_of_the_split(self, tmp_path: Path) -> None:
        file = write_jsonl(tmp_path / "train.jsonl", ROWS)
        first = fingerprint(str(tmp_path))
        assert fingerprint(str(tmp_path)) == first
        os.utime(file, ns=(1, 1))
        second = fingerprint(str(tmp_path))
        assert second != first
        write_jsonl(tmp_path / "validation.jsonl", ROWS)
        assert fingerprint(str(tmp_path)) == second
        write_jsonl(tmp_path / "train-1.jsonl", ROWS)
        assert fingerprint(str(tmp_path)) != second

    def test_contents_stay_the_same_when_a_file_is_copied(self, tmp_path: Path) -> None:
        first = contents(str(write_jsonl(tmp_path / "train.jsonl", ROWS)))
        (tmp_path / "other").mkdir()
        copy = write_jsonl(tmp_path / "other" / "train.jsonl", ROWS)
        os.utime(copy, ns=(1, 1))
        assert contents(str(copy)) == contents(str(copy.parent)) == first
        write_jsonl(copy, ROWS[1:])
        assert contents(str(copy)) != first

    def test_of_a_builtin_is_the_version_of_python(self) -> None:
        assert fingerprint("stdlib-code") == ["stdlib-code", sys.version]


class TestCounts:
    def test_lines_and_files(self, tmp_path: Path) -> None:
        (tmp_path / "train.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
        assert count_rows(str(tmp_path / "train.jsonl")) == 2
        (tmp_path / "texts").mkdir()
        for name in "abc":
            (tmp_path / "texts" / f"{name}.txt").write_text(name)
        assert count_rows(str(tmp_path / "texts")) == 3

    def test_parquet(self, tmp_path: Path) -> None:
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.table({"text": ["a", "b", "c"]}), tmp_path / "rows.parquet")
        assert count_rows(str(tmp_path / "rows.parquet")) == 3
        (tmp_path / "rows.parquet").write_bytes(b"no parquet")
        assert count_rows(str(tmp_path / "rows.parquet")) is None

    def test_what_only_reading_would_tell(self, tmp_path: Path) -> None:
        (tmp_path / "rows.csv").write_text("text\na\n")
        assert count_rows(str(tmp_path / "rows.csv")) is None
        assert count_rows("stdlib-code") is None
