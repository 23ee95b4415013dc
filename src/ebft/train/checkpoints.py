"""Which checkpoints are complete. A checkpoint counts only once its mark is written, after everything else in it.

A run that is killed while it writes a checkpoint leaves one without a mark; resuming takes the one before.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from pathlib import Path

from ebft.errors import ConfigError
from ebft.runtime import sharded_checkpoints

MARK = "COMPLETE"


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
    found = (checkpoint / sharded_checkpoints.MODEL).is_dir()
    if found != sharded:
        holds, needs = ("shards", "with fsdp=full_shard") if found else ("a whole model", "without fsdp")
        raise ConfigError(f"{checkpoint} holds {holds}; resume {needs}, as the run began, or choose another folder")


def mark_complete(checkpoint: Path) -> None:
    """Everything in the folder reaches the disk before the mark does."""
    for file in checkpoint.rglob("*"):
        if file.is_file():
            _sync(file)
    mark = checkpoint / MARK
    mark.write_text("all files of this checkpoint were written\n")
    _sync(mark)
    _sync(checkpoint)


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
