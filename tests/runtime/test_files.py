"""Files that are whole or not there."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from ebft.runtime import files


def test_a_reader_sees_the_old_text_until_the_new_one_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "results.json"
    files.write_json(file, {"step": 1})
    seen: list[Any] = []
    replace = Path.replace

    def look_then_replace(self: Path, target: Path) -> Path:
        seen.append((files.read_json(file), json.loads(self.read_text(encoding="utf-8"))))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", look_then_replace)
    files.write_json(file, {"step": 2})
    assert seen == [({"step": 1}, {"step": 2})], "the new one is whole before it takes the place of the old one"
    assert files.read_json(file) == {"step": 2}
    assert [p.name for p in tmp_path.iterdir()] == ["results.json"]


def test_an_error_while_writing_leaves_the_old_text(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    files.write_text(file, "old")
    with pytest.raises(UnicodeEncodeError):
        files.write_text(file, "half \ud800")
    assert file.read_text() == "old"
    with pytest.raises(TypeError):
        files.write_json(file, {"not for JSON": object()})
    assert file.read_text() == "old"


def test_what_is_written_is_read(tmp_path: Path) -> None:
    value = {"text": "Grüße", "numbers": [1, 2.5, None]}
    files.write_json(tmp_path / "a.json", value)
    assert files.read_json(tmp_path / "a.json") == value
    assert "Grüße" in (tmp_path / "a.json").read_text(encoding="utf-8"), "for people to read"
    files.write_jsonl(tmp_path / "b.jsonl", iter([value, {}]))
    assert [json.loads(line) for line in (tmp_path / "b.jsonl").read_text().splitlines()] == [value, {}]


def test_missing_and_cut_off_files_hold_nothing(tmp_path: Path) -> None:
    assert files.read_json(tmp_path / "missing.json") is None
    (tmp_path / "cut.json").write_text('{"step": 1')
    assert files.read_json(tmp_path / "cut.json") is None


def test_json_ready() -> None:
    given = {
        "tensor": torch.tensor(1.5),
        "inner": {"nan": math.nan, "infinite": torch.tensor(-math.inf), "count": torch.tensor(3)},
        "text": "nan",
        "list": [1],
    }
    found = files.json_ready(given)
    assert found == {"tensor": 1.5, "inner": {"nan": None, "infinite": None, "count": 3}, "text": "nan", "list": [1]}
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_the_cache_is_where_the_variable_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for value, expected in ((str(tmp_path / "c"), tmp_path / "c"), ("~/d", tmp_path / "d")):
        monkeypatch.setenv("EBFT_CACHE", value)
        assert files.cache_directory() == expected
    for value in ("", None):
        monkeypatch.setenv("EBFT_CACHE", value) if value is not None else monkeypatch.delenv("EBFT_CACHE")
        assert files.cache_directory() == tmp_path / ".cache" / "ebft"
