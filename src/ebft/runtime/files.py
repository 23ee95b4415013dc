"""Small files that are whole or not there, and one writer for one folder."""

from __future__ import annotations

import hashlib
import json
import math
import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ebft.errors import ConfigError

Json = dict[str, Any]  # what a file says, or is to say
LOCK_WAIT = "EBFT_LOCK_WAIT"  # in the environment: seconds to wait for another process to leave, instead of none


def cache_directory() -> Path:
    """Where tokens and fetched models are kept: EBFT_CACHE, or a folder in the home."""
    return Path(os.environ.get("EBFT_CACHE") or Path.home() / ".cache" / "ebft").expanduser()


def write_text(file: Path, text: str) -> None:
    """Write beside the place and rename: whoever reads sees the old text or the new one, never half of it."""
    partial = file.with_name(f"{file.name}.partial")
    partial.unlink(missing_ok=True)  # of a run that was killed; or a link to somewhere else, which is not followed
    with partial.open("x", encoding="utf-8") as written:
        written.write(text)
    partial.replace(file)


def share_weights(folder: Path) -> None:
    """Give files the mode that the umask says; safetensors makes them readable by their owner alone."""
    umask = os.umask(0o077)  # it can only be read by setting it
    os.umask(umask)
    for file in folder.glob("*.safetensors"):
        file.chmod(0o666 & ~umask)


def write_json(file: Path, value: object) -> None:
    write_text(file, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def write_jsonl(file: Path, rows: Iterable[object]) -> None:
    write_text(file, "".join(json.dumps(row) + "\n" for row in rows))


def read_jsonl(file: Path) -> list[Json]:
    """Its rows, without a last one that is being written; none if it is not there."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    # Not splitlines: JSON leaves line separators of other scripts inside its strings as they are.
    try:
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].split("\n") if line]
    except ValueError as error:
        raise ConfigError(f"{file} holds a line that is not JSON ({error})") from None


def read_json(file: Path) -> Any:
    """What is in the file; None if it is not there or cannot be read as JSON."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError, RecursionError):
        return None


def sha256_of(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def json_ready(value: object) -> Any:
    """What JSON can hold: numbers instead of tensors, nothing instead of NaN and infinity."""
    if isinstance(value, dict):
        return {name: json_ready(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(part) for part in value]
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold the lock `file`: one writer for its folder. The kernel frees it when its holder has ended, or was killed."""
    from filelock import FileLock, Timeout  # its import takes longer than all others here

    lock = FileLock(file, timeout=float(os.environ.get(LOCK_WAIT) or 0))
    made = [folder for folder in file.parents if not folder.exists()]  # and go again if they stay empty
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        lock.acquire()
    except FileNotFoundError:  # who held it has taken an empty folder along
        with locked(file):
            yield
        return
    except Timeout:
        what = f"{file.parent} is in use by process {' on '.join(file.read_text().split())}"
        raise ConfigError(f"{what}; wait, or choose another place (if that machine is dead, delete {file})") from None
    try:
        file.write_text(f"{os.getpid()}\n{socket.gethostname()}\n")
        yield
    finally:
        with suppress(OSError):  # a disk that has turned read-only
            file.unlink(missing_ok=True)  # before it is free: who waits for it sees that, and makes a new one
            for folder in made:
                folder.rmdir()
        lock.release()
