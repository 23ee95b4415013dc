"""One writer for one folder: the living are respected, the dead are not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ebft.errors import ConfigError
from ebft.runtime import locks
from ebft.runtime.locks import Lock


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(locks, "WATCH_SECONDS", 0.6)


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock."""
    code = (
        "import sys, time; from pathlib import Path; from ebft.runtime import locks\n"
        "locks.BEAT_SECONDS = 0.05\n"
        f"locks.Lock(Path({str(tmp_path / 'run' / 'lock')!r})).take()\n"
        "print('taken', flush=True); time.sleep(60)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "taken\n"
        yield process
        process.kill()


def test_a_second_process_is_refused_with_the_name_of_the_first(other: subprocess.Popen[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"run is in use by process {other.pid} on {os.uname().nodename}; wait"):
        Lock(tmp_path / "run" / "lock").take()


def test_the_lock_of_a_dead_process_is_taken_over(other: subprocess.Popen[str], tmp_path: Path) -> None:
    other.kill()
    other.wait()
    with Lock(tmp_path / "run" / "lock") as mine:
        assert json.loads(mine.file.read_text())["pid"] == os.getpid()
    assert not mine.file.exists()


def test_a_number_that_another_process_has_by_now(tmp_path: Path) -> None:
    """The holder is dead, and its process number is in use again."""
    file = tmp_path / "lock"
    lock = Lock(file)
    lock.take()
    found = json.loads(file.read_text())
    lock.release()
    file.write_text(json.dumps({**found, "started": "1"}))
    with Lock(file):
        pass


def test_a_holder_on_another_machine_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "lock"
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(locks, "_machine", lambda: ["elsewhere"])
        holder = Lock(file)
        holder.take()
    with pytest.raises(ConfigError, match="is in use by process"):
        Lock(file).take()
    holder._ended.set()  # it beats no more
    time.sleep(0.2)
    started = time.monotonic()
    with Lock(file) as mine:
        assert time.monotonic() - started > 0.6
        assert json.loads(file.read_text())["token"] == mine._holder["token"]
    holder.release()


def test_a_lock_that_was_cut_off_while_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    with Lock(tmp_path / "lock"):
        pass


def test_a_holder_that_slept_too_long_stops(other: subprocess.Popen[str], tmp_path: Path) -> None:
    """It finds another one in its lock when it wakes up, and must not write any more."""
    file = tmp_path / "run" / "lock"
    found: dict[str, Any] = json.loads(file.read_text())
    file.with_name("new").write_text(json.dumps({**found, "token": "of another"}))
    file.with_name("new").replace(file)
    assert other.wait(10) == 1


def test_a_forked_process_does_not_release_it(tmp_path: Path) -> None:
    with Lock(tmp_path / "lock") as lock:
        if (pid := os.fork()) == 0:
            lock.release()
            os._exit(0)
        os.waitpid(pid, 0)
        assert lock.file.exists()


def test_one_file_of_a_folder(tmp_path: Path) -> None:
    locked = {name: Lock(tmp_path / f"{name}.lock", tmp_path / name) for name in ("a.json", "b.json")}
    with locked["a.json"], locked["b.json"], pytest.raises(ConfigError, match=r"/a\.json is in use .* another file"):
        Lock(tmp_path / "a.json.lock", tmp_path / "a.json").take()


def test_waiting_for_the_holder_to_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the jobs of a sweep do, whose predecessors may need a moment to save a checkpoint."""
    monkeypatch.setenv(locks.LOCK_WAIT, "30")
    first = Lock(tmp_path / "lock")
    first.take()
    threading.Timer(0.3, first.release).start()
    with Lock(tmp_path / "lock"):
        pass
    monkeypatch.setenv(locks.LOCK_WAIT, "long")
    with pytest.raises(ConfigError, match="EBFT_LOCK_WAIT=long is not a number of seconds"):
        Lock(tmp_path / "lock").take()


def test_a_full_disk_leaves_no_lock_without_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Lock, beat: int) -> bytes:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(Lock, "_content", full)
        with pytest.raises(OSError, match="No space"):
            Lock(tmp_path / "lock").take()
    assert not (tmp_path / "lock").exists()
