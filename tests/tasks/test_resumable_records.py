from __future__ import annotations

from pathlib import Path

import pytest

from ebft.errors import ConfigError
from ebft.tasks.resumable_records import ResumableRecords


def test_records_without_settings_are_nobodys(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(ConfigError, match=r"x.jsonl is there without x.settings.json"):
        ResumableRecords(tmp_path, "x", {})
    kept = ResumableRecords(tmp_path, "y", {"a": (1, 2)})
    kept.append([{"text": "one\u2028two"}])  # a line separator inside a text is not the end of a record
    assert ResumableRecords(tmp_path, "y", {"a": [1, 2]}).rows == [{"text": "one\u2028two"}]
    (tmp_path / "y.jsonl").write_text("nonsense\n")
    with pytest.raises(ConfigError, match=r"y.jsonl is damaged"):
        ResumableRecords(tmp_path, "y", {"a": [1, 2]})


def test_studies_replace_what_other_settings_made(tmp_path: Path) -> None:
    ResumableRecords(tmp_path, "x", {"a": 1}).append([{"row": 1}])
    with pytest.raises(ConfigError, match="was made with a=1, not 2"):
        ResumableRecords(tmp_path, "x", {"a": 2})
    assert ResumableRecords(tmp_path, "x", {"a": 1}, replace_changed=True).rows == [{"row": 1}], "nothing has changed"
    assert ResumableRecords(tmp_path, "x", {"a": 2}, replace_changed=True).rows == []
