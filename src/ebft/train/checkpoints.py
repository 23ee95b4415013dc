"""Whether a run may begin in a folder, and which of its checkpoints are complete and sound. Nothing here needs torch.

A checkpoint counts once its mark is written, after everything else in it. The mark lists every file with its SHA-256:
a run that continued from a file that was cut off or has changed since would be another run, without a word.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ebft.errors import ConfigError
from ebft.runtime.files import read_json, sha256_of, share_weights, write_json
from ebft.runtime.launch import how_to_resume

logger = logging.getLogger(__name__)

RECIPE_FILE = "recipe.yaml"  # what was set, by file and flags
LOCK_FILE = "run.lock"  # while a process writes here
MARK = "COMPLETE"
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


def folder_at(output_dir: str | None, step: int) -> Path:
    return Path(output_dir or "") / f"checkpoint-{step}"


def step_of(checkpoint: Path) -> int:
    """-1 for other names."""
    before, _, step = checkpoint.name.partition("checkpoint-")
    return int(step) if step.isdecimal() and not before else -1


def all_checkpoints(output_dir: str | Path) -> list[Path]:
    """Complete or not, oldest first."""
    return sorted((p for p in Path(output_dir).glob("checkpoint-*") if step_of(p) >= 0), key=step_of)


def complete_checkpoints(output_dir: str | Path) -> list[Path]:
    return [p for p in all_checkpoints(output_dir) if (p / MARK).exists()]


def last_checkpoint(output_dir: str | Path) -> Path | None:
    return next(reversed(complete_checkpoints(output_dir)), None)


def mark_complete(checkpoint: Path) -> None:
    """Every file in the folder reaches the disk before the mark does."""
    share_weights(checkpoint)
    files = [file for file in sorted(checkpoint.rglob("*")) if file.is_file() and file.name != MARK]
    names = [file.relative_to(checkpoint).as_posix() for file in files]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        sums = dict(zip(names, pool.map(_sync_and_hash, files), strict=True))
    write_json(checkpoint / MARK, {"files": {name: {"sha256": sha256} for name, sha256 in sums.items()}})
    _sync_and_hash(checkpoint / MARK)


def _sync_and_hash(file: Path) -> str:
    with file.open("rb") as content:
        os.fsync(content.fileno())
        return hashlib.file_digest(content, "sha256").hexdigest()


def damage(checkpoint: Path) -> list[str]:
    """Which files of a complete checkpoint are missing or not what was written."""
    try:
        listed = {name: entry["sha256"] for name, entry in read_json(checkpoint / MARK)["files"].items()}
    except (TypeError, KeyError, AttributeError):
        return [MARK]

    def is_sound(name: str) -> bool:
        try:
            return sha256_of(checkpoint / name) == listed[name]
        except (OSError, ValueError):  # also a name that no file can have
            return False

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return [name for name, sound in zip(listed, pool.map(is_sound, listed), strict=True) if not sound]


def clear_away(output_dir: Path) -> None:
    """Delete checkpoints that were cut off, and rename the newest ones that are damaged, up to the first sound one.

    If none is sound, nothing is renamed and it is an error: to begin again from the start is nothing to do unasked.
    """
    for cut_off in remove_incomplete(output_dir):
        logger.info(f"{cut_off.name} was cut off while it was written; it is not used")
    damaged: dict[Path, str] = {}
    for checkpoint in reversed(complete_checkpoints(output_dir)):
        if not (wrong := damage(checkpoint)):
            break
        damaged[checkpoint] = f"{checkpoint.name} is damaged (missing or changed: {', '.join(wrong[:3])})"
    else:
        if damaged:
            raise ConfigError(
                f"output_dir={output_dir} has no checkpoint that is sound: {next(iter(damaged.values()))}; put a good "
                "copy in its place, or choose another folder"
            )
    for checkpoint, what in damaged.items():
        logger.warning(f"{what}; it is set aside, and the one before is used")
        aside = checkpoint.with_name(f"damaged-{checkpoint.name}")
        shutil.rmtree(aside, ignore_errors=True)
        checkpoint.rename(aside)


def remove_incomplete(output_dir: Path) -> list[Path]:
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
