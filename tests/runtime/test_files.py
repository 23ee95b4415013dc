"""Files that are whole or not there, and one writer for one folder."""

import json
import math
import os
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from ebft.errors import ConfigError
from ebft.runtime import files
from ebft.runtime.files import locked, read_json, write_json


def test_a_reader_sees_the_old_text_until_the_new_one_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, replace, seen = tmp_path / "results.json", Path.replace, []
    write_json(file, {"step": 1})
    (tmp_path / "precious").write_text("old")
    (tmp_path / "results.json.partial").symlink_to(tmp_path / "precious")  # not followed

    def look_then_replace(self: Path, target: Path) -> Path:
        seen.append((read_json(file), json.loads(self.read_text(encoding="utf-8"))))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", look_then_replace)
    write_json(file, {"step": 2})
    assert seen == [({"step": 1}, {"step": 2})], "the new one is whole before it takes the place of the old one"
    for value in ("half \ud800", object()):
        with pytest.raises((UnicodeEncodeError, TypeError)):
            write_json(file, value)
    assert read_json(file) == {"step": 2}
    assert (tmp_path / "precious").read_text() == "old"


def test_a_second_process_is_refused_until_the_first_is_dead(tmp_path: Path) -> None:
    lock = tmp_path / "run" / "lock"
    code = "import sys, time; from pathlib import Path; from ebft.runtime.files import locked\n"
    code += f"with locked(Path({str(lock)!r})): print('taken', flush=True); time.sleep(60)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "taken\n"
        with pytest.raises(ConfigError, match=rf"run is in use by process {other.pid} on {os.uname().nodename}; wait"):
            ExitStack().enter_context(locked(lock))
        other.kill()
    with locked(lock):
        pass
    assert not lock.exists()


def test_waiting_for_the_holder_to_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the jobs of a sweep do, whose predecessors may need a moment to save a checkpoint."""
    monkeypatch.setenv(files.LOCK_WAIT, "30")
    lock, holder = tmp_path / "run" / "lock", ExitStack()
    holder.enter_context(locked(lock))
    waiting = threading.Thread(target=lambda: ExitStack().enter_context(locked(lock)))
    waiting.start()
    assert waiting.is_alive()
    time.sleep(0.2)  # it has found the folder, which goes when its holder does
    holder.close()
    waiting.join(20)
    assert not waiting.is_alive()


def test_folders_that_were_made_for_a_lock_and_stayed_empty_go_with_it(tmp_path: Path) -> None:
    (mine := tmp_path / "mine").mkdir()
    for folder in (mine, tmp_path / "runs" / "refused", tmp_path / "runs" / "one"):
        with locked(folder / "lock"):
            (folder.parent / "left").touch() if folder.name == "one" else None
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["left", "mine", "runs"]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    ready = files.json_ready({"nan": math.nan, "inner": {"infinite": torch.tensor(-math.inf), "n": torch.tensor(3)}})
    assert ready == {"nan": None, "inner": {"infinite": None, "n": 3}}
    write_json(tmp_path / "a.json", ready)
    files.write_jsonl(tmp_path / "b.jsonl", [ready, {"x": "\u2028"}])
    assert read_json(tmp_path / "a.json") == ready
    with (tmp_path / "b.jsonl").open("a") as file:
        file.write('{"being": "writ')
    assert files.read_jsonl(tmp_path / "b.jsonl") == [ready, {"x": "\u2028"}]
    (tmp_path / "cut.json").write_text('{"step": 1')
    assert read_json(tmp_path / "missing.json") is read_json(tmp_path / "cut.json") is None
