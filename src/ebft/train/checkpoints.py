"""Which checkpoints are complete and sound. One counts only once its mark is written, after everything else in it.

A run that is killed while it writes a checkpoint leaves one without a mark; resuming takes the one before. The mark
lists every file with its size and SHA-256. Resuming compares: a disk, a copy or a hand may have changed one since, and
a run that continues from half a state goes on as another run, without a word.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ebft.errors import ConfigError
from ebft.runtime.files import read_json, sha256_of, share_weights

MARK = "COMPLETE"
DAMAGED = "damaged-"  # before the name of a checkpoint that was set aside
_AT_ONCE = 8  # files that are read side by side; hashing leaves Python's lock alone


def step_of(checkpoint: Path) -> int:
    match = re.fullmatch(r"checkpoint-(\d+)", checkpoint.name)
    return int(match.group(1)) if match else -1


def all_checkpoints(output_dir: str | Path) -> list[Path]:
    """Complete or not, oldest first."""
    return sorted((p for p in Path(output_dir).glob("checkpoint-*") if step_of(p) >= 0), key=step_of)


def complete_checkpoints(output_dir: str | Path) -> list[Path]:
    return [p for p in all_checkpoints(output_dir) if (p / MARK).exists()]


def last_checkpoint(output_dir: str | Path) -> Path | None:
    complete = complete_checkpoints(output_dir)
    return complete[-1] if complete else None


def check_kind(checkpoint: Path, sharded: bool) -> None:
    """Shards and whole models are not turned into each other on the way."""
    from ebft.runtime import sharding  # brings in torch, which a refused folder does not wait for

    found = (checkpoint / sharding.MODEL).is_dir()
    if found != sharded:
        holds, needs = ("shards", "with fsdp=full_shard") if found else ("a whole model", "without fsdp")
        raise ConfigError(f"{checkpoint} holds {holds}; resume {needs}, as the run began, or choose another folder")


def mark_complete(checkpoint: Path) -> None:
    """Everything in the folder reaches the disk before the mark does."""
    share_weights(checkpoint)
    files = [file for file in sorted(checkpoint.rglob("*")) if file.is_file() and file != checkpoint / MARK]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        names = [file.relative_to(checkpoint).as_posix() for file in files]
        found = dict(zip(names, pool.map(_sync_and_describe, files), strict=True))
    mark = checkpoint / MARK
    mark.write_text(json.dumps({"files": found}, indent=1) + "\n")
    for path in (mark, *{file.parent for file in files}, checkpoint):
        _sync(path)


def damage(checkpoint: Path) -> list[str]:
    """What is wrong with the files of a complete checkpoint; empty if they are what was written."""
    mark = read_json(checkpoint / MARK)
    if mark is None and (checkpoint / MARK).read_bytes() == _OLD_MARK:
        return []  # of a version that listed no files
    listed = mark.get("files") if isinstance(mark, dict) else None
    if not isinstance(listed, dict) or not all(map(_is_described, listed.values())):
        return [f"{MARK} cannot be read"]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        wrong = pool.map(lambda item: _difference(checkpoint / item[0], item[1]), listed.items())
        return [f"{name} {what}" for name, what in zip(listed, wrong, strict=True) if what]


_OLD_MARK = b"all files of this checkpoint were written\n"


def _is_described(entry: object) -> bool:
    return isinstance(entry, dict) and type(entry.get("bytes")) is int and isinstance(entry.get("sha256"), str)


def _difference(file: Path, expected: dict[str, Any]) -> str | None:
    try:
        size = file.stat().st_size
        if size != expected["bytes"]:
            return f"has {size:,} bytes instead of {expected['bytes']:,}"
        return None if sha256_of(file) == expected["sha256"] else "has changed (its SHA-256 differs)"
    except FileNotFoundError:
        return "is missing"
    except (OSError, ValueError) as error:  # also a name that no file can have
        return f"cannot be read ({error})"


def _sync_and_describe(file: Path) -> dict[str, object]:
    _sync(file)
    return {"bytes": file.stat().st_size, "sha256": sha256_of(file)}


def set_damaged_aside(output_dir: str | Path) -> list[str]:
    """Rename the newest checkpoints up to the first that is sound; returns what was wrong, one line for each.

    If none is sound, nothing is renamed and it is an error: to begin again from the start is nothing to do unasked.
    """
    lines: list[str] = []
    damaged: list[Path] = []
    for checkpoint in reversed(complete_checkpoints(output_dir)):
        wrong = damage(checkpoint)
        if not wrong:
            break
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        lines.append(f"{checkpoint.name} is damaged: {', '.join(wrong[:3])}{more}")
        damaged.append(checkpoint)
    else:
        if lines:
            raise ConfigError(
                f"output_dir={output_dir} has no checkpoint that is sound ({lines[0]}); put a good copy in its place, "
                "or choose another folder"
            )
    for checkpoint in damaged:
        aside = checkpoint.with_name(DAMAGED + checkpoint.name)
        shutil.rmtree(aside, ignore_errors=True)
        checkpoint.rename(aside)
    return lines


def remove_incomplete(output_dir: str | Path) -> list[Path]:
    """Delete what was cut off, so that it is not taken for complete."""
    cut_off = [p for p in all_checkpoints(output_dir) if not (p / MARK).exists()]
    for checkpoint in cut_off:
        shutil.rmtree(checkpoint, ignore_errors=True)
    return cut_off


def rotate(output_dir: str | Path, limit: int | None, keep: set[Path]) -> None:
    """Delete the oldest complete checkpoints beyond `limit`, sparing those in `keep`."""
    if limit is None or limit <= 0:
        return
    complete = complete_checkpoints(output_dir)
    spare = {p.resolve() for p in keep} | {p.resolve() for p in complete[-limit:]}
    for checkpoint in complete:
        if checkpoint.resolve() not in spare:
            shutil.rmtree(checkpoint, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_disk_full(error: BaseException, output_dir: Path | None) -> bool:
    """Libraries report a full disk each in their own way; where the words are missing, the disk itself tells."""
    if getattr(error, "errno", None) == errno.ENOSPC or "No space left" in str(error):
        return True
    writing = isinstance(error, RuntimeError | OSError) and "PytorchStreamWriter" in str(error) + type(error).__name__
    folder = output_dir
    while folder is not None and not folder.exists() and folder != folder.parent:
        folder = folder.parent
    nearly_full = folder is not None and shutil.disk_usage(folder).free < 16 * 2**20
    return nearly_full and (writing or isinstance(error, RuntimeError | OSError))
