"""Whether a run may begin in a folder, and which of its checkpoints are complete and sound. Nothing here needs torch.

A checkpoint counts only once its mark is written, after everything else in it: a run that is killed before leaves one
without, and resuming takes the one before. The mark lists every file with its size and SHA-256. Resuming compares: a
disk, a copy or a hand may have changed one, and a run that continues from half a state goes on as another run, without
a word.
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
from ebft.runtime.launch import how_to_resume

RECIPE_FILE = "recipe.yaml"  # what was set, by file and flags
LOCK_FILE = "run.lock"  # while a process writes here
MARK = "COMPLETE"
DAMAGED = "damaged-"  # before the name of a checkpoint that was set aside
_AT_ONCE = 8  # files that are read side by side; hashing leaves Python's lock alone


def refusal(folder: Path, resume: bool) -> str | None:
    """Why a run cannot begin in this folder; None if it can."""
    if holds_run(folder):
        if resume:
            return None
        known = (folder / RECIPE_FILE).exists()  # else a program has left its checkpoints here
        way = f": {how_to_resume(folder)}" if known else " --resume"
        return f"output_dir={folder} already holds a run; choose another folder, or continue it with{way}"
    if folder.is_dir() and any(file.name != LOCK_FILE for file in folder.iterdir()):
        return f"output_dir={folder} is not empty and holds no run; choose another folder"
    return None


def holds_run(folder: Path) -> bool:
    return (folder / RECIPE_FILE).exists() or bool(all_checkpoints(folder))


def step_of(checkpoint: Path) -> int:
    match = re.fullmatch(r"checkpoint-(\d+)", checkpoint.name)
    return int(match.group(1)) if match else -1


def all_checkpoints(output_dir: str | Path) -> list[Path]:
    """Complete or not, oldest first."""
    return sorted((p for p in Path(output_dir).glob("checkpoint-*") if step_of(p) >= 0), key=step_of)


def complete_checkpoints(output_dir: str | Path) -> list[Path]:
    return [p for p in all_checkpoints(output_dir) if (p / MARK).exists()]


def last_checkpoint(output_dir: str | Path) -> Path | None:
    return next(reversed(complete_checkpoints(output_dir)), None)


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
    mark = checkpoint / MARK
    files = [file for file in sorted(checkpoint.rglob("*")) if file.is_file() and file != mark]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = zip(files, pool.map(_sync_and_describe, files), strict=True)
        listed = {file.relative_to(checkpoint).as_posix(): described for file, described in found}
    mark.write_text(json.dumps({"files": listed}, indent=1) + "\n")
    for path in (mark, *{file.parent for file in files}, checkpoint):
        _sync(path)


def _sync_and_describe(file: Path) -> dict[str, object]:
    _sync(file)
    return {"bytes": file.stat().st_size, "sha256": sha256_of(file)}


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def damage(checkpoint: Path) -> list[str]:
    """What is wrong with the files of a complete checkpoint; empty if they are what was written."""
    try:
        files = read_json(checkpoint / MARK)["files"].items()
        listed = {name: (entry["bytes"], entry["sha256"]) for name, entry in files}
    except (TypeError, KeyError, AttributeError):
        return [f"{MARK} cannot be read"]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        wrong = pool.map(lambda name: _difference(checkpoint / name, *listed[name]), listed)
        return [f"{name} {what}" for name, what in zip(listed, wrong, strict=True) if what]


def _difference(file: Path, size: Any, sha256: Any) -> str | None:
    try:
        if (found := file.stat().st_size) != size:
            return f"has {found:,} bytes instead of {size:,}"
        return None if sha256_of(file) == sha256 else "has changed (its SHA-256 differs)"
    except FileNotFoundError:
        return "is missing"
    except (OSError, ValueError) as error:  # also a name that no file can have
        return f"cannot be read ({error})"


def set_damaged_aside(output_dir: str | Path) -> list[str]:
    """Rename the newest checkpoints up to the first that is sound; returns what was wrong, one line for each.

    If none is sound, nothing is renamed and it is an error: to begin again from the start is nothing to do unasked.
    """
    damaged: dict[Path, str] = {}
    for checkpoint in reversed(complete_checkpoints(output_dir)):
        if not (wrong := damage(checkpoint)):
            break
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        damaged[checkpoint] = f"{checkpoint.name} is damaged: {', '.join(wrong[:3])}{more}"
    else:
        if damaged:
            raise ConfigError(
                f"output_dir={output_dir} has no checkpoint that is sound ({next(iter(damaged.values()))}); put a good "
                "copy in its place, or choose another folder"
            )
    for checkpoint in damaged:
        aside = checkpoint.with_name(DAMAGED + checkpoint.name)
        shutil.rmtree(aside, ignore_errors=True)
        checkpoint.rename(aside)
    return list(damaged.values())


def remove_incomplete(output_dir: str | Path) -> list[Path]:
    """Delete what was cut off, so that it is not taken for complete."""
    cut_off = [p for p in all_checkpoints(output_dir) if not (p / MARK).exists()]
    for checkpoint in cut_off:
        shutil.rmtree(checkpoint, ignore_errors=True)
    return cut_off


def rotate(output_dir: str | Path, limit: int | None, keep: set[Path]) -> None:
    """Delete the oldest complete checkpoints beyond `limit`, sparing those in `keep`."""
    spare = {p.resolve() for p in keep}
    for checkpoint in complete_checkpoints(output_dir)[: -limit if limit else 0]:
        if checkpoint.resolve() not in spare:
            shutil.rmtree(checkpoint, ignore_errors=True)


def is_disk_full(error: BaseException, output_dir: Path) -> bool:
    """Libraries report a full disk each in their own way; where the words are missing, the disk itself tells."""
    if getattr(error, "errno", None) == errno.ENOSPC or "No space left" in str(error):
        return True
    folder = next(place for place in (output_dir.absolute(), *output_dir.absolute().parents) if place.exists())
    return isinstance(error, RuntimeError | OSError) and shutil.disk_usage(folder).free < 16 * 2**20
