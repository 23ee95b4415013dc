"""Files that are whole or not there, and one writer for one folder."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from ebft.errors import ConfigError
from ebft.runtime import files
from ebft.runtime.files import locked, write_text


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


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock."""
    code = (
        "import sys, time; from pathlib import Path; from ebft.runtime.files import locked, write_text\n"
        f"with locked(Path({str(tmp_path / 'run' / 'lock')!r})): print('taken', flush=True); time.sleep(60)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "taken\n"
        yield process
        process.kill()


def test_a_second_process_is_refused_until_the_first_is_dead(other: subprocess.Popen[str], tmp_path: Path) -> None:
    lock = tmp_path / "run" / "lock"
    with pytest.raises(ConfigError, match=rf"run is in use by process {other.pid} on {os.uname().nodename}; wait"):
        ExitStack().enter_context(locked(lock))
    other.kill()
    other.wait()
    with locked(lock):
        assert lock.read_text().startswith(f"{os.getpid()}\n")
    assert not lock.exists()


def test_a_folder_that_stays_empty_goes_with_its_lock(tmp_path: Path) -> None:
    for name in ("empty", "used"):
        with locked(tmp_path / name / "lock"):
            if name == "used":
                (tmp_path / name / "file").touch()
    assert not (tmp_path / "empty").exists()
    assert [file.name for file in (tmp_path / "used").iterdir()] == ["file"]


def test_the_lock_of_another_machine_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a disk without the kernel's locks, a file that somebody has left stands for the lock."""

    def not_here(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, "no locks")

    monkeypatch.setattr(fcntl, "flock", not_here)
    (tmp_path / "lock").write_text("7\nelsewhere\n")
    words = rf"in use by process 7 on elsewhere; .*; if elsewhere is dead, delete {tmp_path}/lock"
    with pytest.warns(UserWarning, match="flock"), pytest.raises(ConfigError, match=words):
        ExitStack().enter_context(locked(tmp_path / "lock"))
    (tmp_path / "lock").unlink()
    with pytest.warns(UserWarning, match="flock"), locked(tmp_path / "lock"):
        assert (tmp_path / "lock").exists()
    assert not (tmp_path / "lock").exists()


def test_one_file_of_a_folder(tmp_path: Path) -> None:
    a = ExitStack()
    a.enter_context(locked(tmp_path / "a.lock", tmp_path / "a"))
    with a, locked(tmp_path / "b.lock", tmp_path / "b"), pytest.raises(ConfigError, match=r"/a is in .* another file"):
        a.enter_context(locked(tmp_path / "a.lock", tmp_path / "a"))


def test_waiting_for_the_holder_to_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the jobs of a sweep do, whose predecessors may need a moment to save a checkpoint."""
    monkeypatch.setenv(files.LOCK_WAIT, "30")
    holder = ExitStack()
    holder.enter_context(locked(tmp_path / "lock"))
    waiting = threading.Thread(target=lambda: ExitStack().enter_context(locked(tmp_path / "lock")))
    waiting.start()
    assert waiting.is_alive()
    holder.close()
    waiting.join(20)
    assert not waiting.is_alive()
    monkeypatch.setenv(files.LOCK_WAIT, "long")
    with pytest.raises(ConfigError, match="EBFT_LOCK_WAIT=long is not a number of seconds"):
        ExitStack().enter_context(locked(tmp_path / "lock"))


def test_what_is_written_beside_its_place_does_not_follow_links(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("old")
    (tmp_path / "results.json.partial").symlink_to(tmp_path / "precious")
    write_text(tmp_path / "results.json", "new")
    assert (tmp_path / "precious").read_text() == "old"
    assert (tmp_path / "results.json").read_text() == "new"
    assert not (tmp_path / "results.json").is_symlink()
