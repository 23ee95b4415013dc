"""One writer for one folder: a lock that names its holder, and that outlives nobody.

The lock is a file that is created exclusively, which is atomic on NFS too, where locks of the kernel may be missing or
local to a machine. It says who holds it, and the holder writes a new number into it every few seconds. Who finds it:

- on the machine of the holder asks the kernel whether that process is still there;
- on another machine watches the number. If it moves, the holder lives; if it does not for a while, the lock is taken
  over. No clocks are compared, and a file that is opened anew is read from the server.

A holder that finds somebody else in its lock (it was asleep for long) must not write any more, and ends at once.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from ebft.errors import ConfigError

BEAT_SECONDS = 10.0
WATCH_SECONDS = 60.0  # several beats, and the time for which NFS may show an old directory
LOCK_WAIT = "EBFT_LOCK_WAIT"  # in the environment: seconds to wait for another holder to leave, instead of none


class Lock:
    """Held between `take` and `release`, by one process.

    Args:
        file: the lock.
        guarded: what it is for, where that is not the whole folder.
    """

    def __init__(self, file: Path, guarded: Path | None = None) -> None:
        self.file = file
        self.guarded = guarded or file.parent
        self._holder = {**_this_process(), "token": secrets.token_hex(8)}
        self._pid: int | None = None  # set while it is held
        self._made_folder = False
        self._ended = threading.Event()

    def take(self) -> None:
        """Raises ConfigError with the host and process of another holder."""
        self._made_folder = not self.file.parent.exists()
        self.file.parent.mkdir(parents=True, exist_ok=True)
        until = time.monotonic() + _patience()
        while not self._create():
            found = _read(self.file)
            if found is None:
                continue  # released meanwhile
            if (holder := _living_holder(self.file, found)) is not None:
                if time.monotonic() < until:
                    time.sleep(0.5)
                    continue
                kind = "folder" if self.guarded == self.file.parent else "file"
                raise ConfigError(
                    f"{self.guarded} is in use by {_name(holder)}; wait for it or stop it, or choose another {kind}"
                )
            if self._take_over(found):
                break
        self._pid = os.getpid()
        threading.Thread(target=self._beat, daemon=True).start()

    def release(self) -> None:
        if self._pid != os.getpid():  # never taken, or in a forked process
            return
        self._ended.set()
        self._pid = None
        with suppress(OSError):  # a disk that has turned read-only: a lock of nobody, once this process has ended
            if (_read(self.file) or {}).get("token") == self._holder["token"]:
                self.file.unlink(missing_ok=True)
            if self._made_folder and not any(self.file.parent.iterdir()):
                self.file.parent.rmdir()  # nothing came of it

    def __enter__(self) -> Lock:
        self.take()
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def _content(self, beat: int) -> bytes:
        return json.dumps({**self._holder, "beat": beat}).encode() + b"\n"

    def _create(self) -> bool:
        try:
            descriptor = os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            return False
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(self._content(0))
        except OSError:  # a full disk; without a name in it, the next one would watch it for a minute
            self.file.unlink(missing_ok=True)
            raise
        return True

    def _take_over(self, stale: dict[str, Any]) -> bool:
        """Put ours in the place of a lock that nobody holds; of several who try, the last one has it."""
        beside = self.file.with_name(f"{self.file.name}.{self._holder['token']}")
        beside.write_bytes(self._content(0))
        if _token(_read(self.file)) != _token(stale):
            beside.unlink()
            return False
        beside.replace(self.file)
        time.sleep(0.5)
        return _token(_read(self.file)) == self._holder["token"]

    def _beat(self) -> None:
        beat = 0
        while not self._ended.wait(BEAT_SECONDS):
            beat += 1
            try:
                found = _read(self.file)
                if not self._ended.is_set() and found is not None and _token(found) != self._holder["token"]:
                    print(f"ebft: {self.guarded} was taken over by {_name(found)}; stopped", file=sys.stderr)
                    os._exit(1)
                with self.file.open("r+b") as file:  # never a new file: it may just have been released
                    file.write(self._content(beat))
            except OSError:  # a full disk, or a server that does not answer: the next beat may succeed
                continue


def _patience() -> float:
    given = os.environ.get(LOCK_WAIT) or "0"
    try:
        return float(given)
    except ValueError:
        raise ConfigError(f"{LOCK_WAIT}={given} is not a number of seconds") from None


def _this_process() -> dict[str, Any]:
    return {"host": socket.gethostname(), "pid": os.getpid(), "machine": _machine(), "started": _started(os.getpid())}


def _machine() -> list[str]:
    """What tells machines and containers apart, also where they have the same name; process numbers belong to it."""
    found = [socket.gethostname()]
    with suppress(OSError):  # Linux only
        found += [Path("/proc/sys/kernel/random/boot_id").read_text().strip(), os.readlink("/proc/self/ns/pid")]
    return found


def _started(pid: int) -> str | None:
    """When a process began, in the kernel's own units; a number may be given to another process later."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def _living_holder(file: Path, found: dict[str, Any]) -> dict[str, Any] | None:
    """Who holds the lock now; None if its holder is gone."""
    if found.get("machine") == _machine() and isinstance(found.get("pid"), int):
        return found if _runs(found["pid"], found.get("started")) else None
    end = time.monotonic() + WATCH_SECONDS
    while time.monotonic() < end:
        time.sleep(min(1.0, WATCH_SECONDS / 10))
        now = _read(file)
        if now != found:
            return now
    return None


def _runs(pid: int, started: str | None) -> bool:
    if started is not None:
        return _started(pid) == started
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        pass
    return True


def _name(holder: dict[str, Any]) -> str:
    return f"process {holder.get('pid', '(unknown)')} on {holder.get('host', '(unknown)')}"


def _token(found: dict[str, Any] | None) -> Any:
    return None if found is None else found.get("token", found)


def _read(file: Path) -> dict[str, Any] | None:
    """Who holds it; None if there is no lock. One that is just being written reads as a holder without a name."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"unreadable": text}
