"""The output folder of a run: whose it is, what it holds, which of its checkpoints are sound, and whether a run may be
resumed in it.

A checkpoint counts once its mark is written, after everything else in it. The mark lists every file with its SHA-256:
a run that continued from a file that was cut off or has changed since would be another run, without a word.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, fields
from pathlib import Path

import yaml

from ebft.config.method import MethodConfig
from ebft.config.recipe import Recipe, as_given
from ebft.data.packing import SequenceDataset
from ebft.errors import ConfigError
from ebft.runtime import processes
from ebft.runtime.files import Json, locked, read_json, sha256_of, share_weights, write_json, write_text

logger = logging.getLogger(__name__)

RECIPE_FILE = "recipe.yaml"  # what was set, by file and flags
RESOLVED_FILE = "resolved.json"  # every setting as the run had it
DATA_FILE = "data.json"  # documents, tokens and checksums
RESULTS_FILE = "results.json"  # validation before and after, the change, and what they depend on
FINAL = "final"  # the trained model
Results = Json
LOCK_FILE = "run.lock"  # while a process writes here
MARK = "COMPLETE"  # of a checkpoint
_AT_ONCE = 8  # files that are read side by side; hashing leaves Python's lock alone

# What may change when a run is resumed: how long, and what it shows and keeps. Not `fsdp`: shards and whole models are
# not turned into each other on the way.
_MAY_CHANGE = re.compile(
    "output_dir|max_steps|num_train_epochs|samples_every|show_prompts|disable_tqdm|report_to|run_name|push_to_hub|"
    "(log|logging|hub|early_stopping|save|eval|per_device_eval|ddp)_.*|"
    # As long as their product with the number of processes stays.
    "per_device_train_batch_size|gradient_accumulation_steps"
)


@contextmanager
def whole(folder: Path) -> Iterator[Path]:
    """A folder beside `folder` that takes its place once everything is in it; the first process moves it."""
    partial = folder.with_name(f"{folder.name}.partial")
    if processes.rank() == 0:
        shutil.rmtree(partial, ignore_errors=True)
    processes.barrier()
    yield partial
    if processes.rank() == 0:
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)


class RunFolder:
    def __init__(self, recipe: Recipe) -> None:
        self.path = Path(recipe.training.output_dir or "")
        self.recipe, self.training = recipe, recipe.training

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Ours alone, for as long as the run takes; the first process holds the lock for all."""
        with ExitStack() as held:
            lock = locked(self.path / LOCK_FILE) if processes.rank() == 0 else nullcontext()
            processes.all_or_none(lambda: held.enter_context(lock))
            yield

    def claim(self, resume: bool, method: str) -> Path | None:
        """Make sure the folder is ours to write in; returns the checkpoint to resume from. All processes call it."""
        if not (self.path / RECIPE_FILE).exists():
            if self.path.is_dir() and any(file.name != LOCK_FILE for file in self.path.iterdir()):
                raise ConfigError(f"output_dir={self.path} is not empty and holds no run; choose another folder")
            return None
        if not resume:
            words = "already holds a run; choose another folder, or continue it with --resume"
            raise ConfigError(f"output_dir={self.path} {words}")
        command, batch, last = self.recipe.command, self.training.rows_per_step, last_checkpoint(self.path)
        given = yaml.safe_load((self.path / RECIPE_FILE).read_text())
        before = read_json(self.path / RESOLVED_FILE) or {}
        made_by = (read_json(self.path / RESULTS_FILE) or {}).get("method", method)  # none before it was measured
        self._same("method", made_by, method)
        sizes = "sequences per step (per_device_train_batch_size x gradient_accumulation_steps x processes)"
        self._same(sizes, before.get("sequences_per_step", batch), batch)
        for name in sorted({*given, *self.recipe.given}):
            if not _MAY_CHANGE.fullmatch(name):
                self._same(name, *(as_given(name, values, command) for values in (given, self.recipe.given)))
        # What nobody gave stays as the run began: a default may have changed since.
        for name in {f.name for f in fields(MethodConfig)} & before.keys() - self.recipe.given.keys():
            setattr(self.training, name, before[name])
        processes.all_or_none(lambda: self._check(last) if processes.rank() == 0 else None)
        if processes.rank() == 0:
            logger.info(f"resuming from {last}" if last else "no complete checkpoint yet: starting from the beginning")
        return last

    def _same(self, name: str, old: object, new: object) -> None:
        if old != new:
            ways_out = "resume with the same settings, or choose another folder"
            raise ConfigError(f"output_dir={self.path} holds a run with {name}={old!r}, not {new!r}; {ways_out}")

    def _check(self, last: Path | None) -> None:
        for cut_off in (p for p in all_checkpoints(self.path) if not (p / MARK).exists()):
            shutil.rmtree(cut_off, ignore_errors=True)
            logger.info(f"{cut_off.name} was cut off while it was written; it is not used")
        if last is not None and (wrong := damage(last)):
            what = f"output_dir={self.path}: {last.name} is damaged (missing or changed: {', '.join(wrong[:3])})"
            raise ConfigError(f"{what}; put a good copy in its place, or delete it and resume from the one before")

    def check_data(self, train_set: SequenceDataset) -> Json:
        """What the data are. A name may stand for others by now; a run resumed with them would be neither run."""
        checksums = [store.checksum() for store in train_set.index.stores]
        data = {"documents": len(train_set.index), "tokens": train_set.total_tokens, "checksums": checksums}
        before = read_json(self.path / DATA_FILE)
        if before != data and (before is not None or last_checkpoint(self.path) is not None):
            words = f"began, or its {DATA_FILE} is broken; put it back, or choose another folder"
            raise ConfigError(f"the dataset has changed since the run in output_dir={self.path} {words}")
        return data

    def describe(self, data: Json, prompt_kinds: Sequence[str] = ()) -> None:
        """What the run is, for people and for resuming: its recipe, every setting, its data."""
        recipe, training = self.recipe, self.training
        if processes.rank() == 0:
            resolved = {**asdict(recipe.model), **asdict(recipe.data), **training.to_dict()} | {
                "push_to_hub": recipe.given.get("push_to_hub", False),  # which the run has taken from the Trainer
                "sequences_per_step": training.rows_per_step,
                "prompt_kinds": list(prompt_kinds),
            }
            text = "# What was set, by recipe and flags.\n" + yaml.safe_dump(recipe.given, sort_keys=False)
            self.path.mkdir(parents=True, exist_ok=True)
            write_text(self.path / RECIPE_FILE, text)
            write_text(self.path / RESOLVED_FILE, json.dumps(resolved, indent=1, default=str))
            write_json(self.path / DATA_FILE, data)


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("checkpoint-"))


def all_checkpoints(output_dir: Path) -> list[Path]:
    """Complete or not, oldest first."""
    return sorted((p for p in output_dir.glob("checkpoint-*") if p.name[11:].isdecimal()), key=step_of)


def complete_checkpoints(output_dir: Path) -> list[Path]:
    return [p for p in all_checkpoints(output_dir) if (p / MARK).exists()]


def last_checkpoint(output_dir: Path) -> Path | None:
    return next(reversed(complete_checkpoints(output_dir)), None)


def mark_complete(checkpoint: Path) -> None:
    """Every file in the folder reaches the disk before the mark does."""
    share_weights(checkpoint)
    files = [file for file in sorted(checkpoint.rglob("*")) if file.is_file() and file.name != MARK]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        sums = zip(files, pool.map(_sync_and_hash, files), strict=True)
        listed = {file.relative_to(checkpoint).as_posix(): {"sha256": sha256} for file, sha256 in sums}
    write_json(checkpoint / MARK, {"files": listed})
    _sync_and_hash(checkpoint / MARK)


def _sync_and_hash(file: Path) -> str:
    with file.open("rb") as content:
        os.fsync(content.fileno())
    return sha256_of(file)


def damage(checkpoint: Path) -> list[str]:
    """Which files of a complete checkpoint are missing or not what was written."""

    def is_sound(name: str) -> bool:
        file = checkpoint / name
        return file.is_file() and sha256_of(file) == listed[name]["sha256"]

    try:
        listed = dict(read_json(checkpoint / MARK)["files"])
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return [name for name, sound in zip(listed, pool.map(is_sound, listed), strict=True) if not sound]
    except (TypeError, KeyError, ValueError, OSError):
        return [MARK]
