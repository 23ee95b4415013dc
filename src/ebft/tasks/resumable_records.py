"""Records that an evaluation leaves on disk as JSONL, so that it can be stopped and resumed.

Records are appended as they are made. Beside them is a file with the settings that made them; resuming with other
settings is an error that says what differs, because the file would hold two things under one name. Studies, whose
options may change, replace such records instead.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ebft.errors import ConfigError
from ebft.runtime.files import read_json, write_json


def fingerprint(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


class ResumableRecords:
    """An append-only JSONL file `<name>.jsonl`, made under the settings in `<name>.settings.json`."""

    def __init__(
        self, folder: Path, name: str, settings: dict[str, Any], overwrite: bool = False, replace_changed: bool = False
    ) -> None:
        self.file = folder / f"{name}.jsonl"
        settings_file = folder / f"{name}.settings.json"
        settings = json.loads(json.dumps(settings))  # as they will be read back
        folder.mkdir(parents=True, exist_ok=True)
        before = read_json(settings_file)
        if overwrite or (replace_changed and before != settings):
            self.file.unlink(missing_ok=True)
            settings_file.unlink(missing_ok=True)
            before = None
        if before is not None and self.file.exists():
            _check_same(self.file, before, settings)
        elif self.file.exists():
            raise ConfigError(
                f"{self.file} is there without {settings_file.name}, so its settings are unknown; move it, or use "
                "--overwrite"
            )
        write_json(settings_file, settings)
        self.rows = self._load()

    def _load(self) -> list[dict[str, Any]]:
        """The complete lines; one that a killed run was writing is removed."""
        if not self.file.exists():
            return []
        content = self.file.read_bytes()
        complete = content[: content.rfind(b"\n") + 1]
        if len(complete) < len(content):
            with self.file.open("r+b") as file:
                file.truncate(len(complete))
        try:
            # Not splitlines: JSON leaves line separators of other scripts inside its strings as they are.
            return [json.loads(line) for line in complete.decode().split("\n") if line]
        except json.JSONDecodeError:
            raise ConfigError(f"{self.file} is damaged; move it, or use --overwrite") from None

    def append(self, rows: Iterable[dict[str, Any]]) -> None:
        rows = list(rows)
        if not rows:
            return
        with self.file.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        self.rows += rows


def _check_same(file: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    for name in sorted(before.keys() | now.keys()):
        old, new = before.get(name), now.get(name)
        if old != new:
            how = f"{name}={_short(old)}, not {_short(new)}"
            if how.count("...") or _short(old) == _short(new):  # cut in the middle, it would tell nobody anything
                how = f"another {name}"
            raise ConfigError(
                f"{file} was made with {how}; resume with the same settings, choose another --output, or use "
                "--overwrite to make it again"
            )


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
