"""The output folder of a run: whose it is, what it holds, and whether a run may be resumed in it."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import yaml

from ebft.config.method import MethodConfig
from ebft.config.recipe import Recipe, as_given
from ebft.data.packing import SequenceDataset
from ebft.errors import ConfigError
from ebft.runtime import processes, sharding
from ebft.runtime.files import locked, read_json, write_json, write_text
from ebft.train import checkpoints
from ebft.train.checkpoints import LOCK_FILE, RECIPE_FILE, holds_run, refusal

logger = logging.getLogger(__name__)

RESOLVED_FILE = "resolved.json"  # every setting as the run had it
DATA_FILE = "data.json"  # documents, tokens and checksums
RESULTS_FILE = "results.json"  # validation before and after, the change, and what they depend on
FINAL = "final"  # the trained model

# What may change when a run is resumed: how long, and what it shows and keeps. How a model is sharded may change too;
# whether it is, the checkpoint says.
_MAY_CHANGE = re.compile(
    "output_dir|max_steps|num_train_epochs|samples_every|show_prompts|disable_tqdm|report_to|run_name|push_to_hub|fsdp.*|"
    "(log|logging|hub|early_stopping|save|eval|per_device_eval|ddp)_.*"
)
# These may change with the number of processes, as long as their product with it stays.
BATCH = ("per_device_train_batch_size", "gradient_accumulation_steps")


def other_setting(run: Path, given: dict[str, Any], command: str, ignored: Sequence[str] = ()) -> str | None:
    """Why the run in this folder cannot go on with these settings: it would be another run under the same name."""
    before = yaml.safe_load((run / RECIPE_FILE).read_text()) if (run / RECIPE_FILE).exists() else {}
    for name in sorted({*before, *given} - {*ignored}) if before else ():
        old, new = (as_given(name, values, command) for values in (before, given))
        if old != new and not _MAY_CHANGE.fullmatch(name):
            return f"{run} holds a run with {name}={old!r}, not {new!r}"
    return None


def check_kind(checkpoint: Path, sharded: bool) -> None:
    """Shards and whole models are not turned into each other on the way."""
    found = (checkpoint / sharding.MODEL).is_dir()
    if found != sharded:
        holds, needs = ("shards", "with fsdp=full_shard") if found else ("a whole model", "without fsdp")
        raise ConfigError(f"{checkpoint} holds {holds}; resume {needs}, as the run began, or choose another folder")


class RunFolder:
    def __init__(self, recipe: Recipe) -> None:
        self.path = Path(recipe.training.output_dir or "")
        self.recipe, self.training = recipe, recipe.training
        self.is_first = recipe.training.process_index == 0

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Ours alone, for as long as the run takes; the first process holds the lock for all."""
        with ExitStack() as held:
            lock = locked(self.path / LOCK_FILE) if self.is_first else nullcontext()
            processes.all_or_none(lambda: held.enter_context(lock))
            yield

    @contextmanager
    def writing_final(self) -> Iterator[Path]:
        """A folder beside `final` that takes its place once everything is in it; the first process moves it."""
        final, partial, old = (self.path / name for name in (FINAL, f"{FINAL}.partial", f"{FINAL}.old"))
        if self.is_first:
            for left_over in (partial, old):
                shutil.rmtree(left_over, ignore_errors=True)
        processes.barrier()
        yield partial
        if self.is_first:
            if final.exists():
                final.rename(old)
            partial.rename(final)
            shutil.rmtree(old, ignore_errors=True)

    def claim(self, resume: bool, method: str) -> Path | None:
        """Make sure the folder is ours to write in; returns the checkpoint to resume from. All processes call it."""
        if (why := refusal(self.path, resume)) is not None:
            raise ConfigError(why)
        if not holds_run(self.path):
            return None
        made_by = (read_json(self.path / RESULTS_FILE) or {}).get("method", "ebft")
        if made_by != method:
            raise ConfigError(f"output_dir={self.path} holds a run of {made_by}, not of {method}; choose another")
        self._check_same_settings()
        processes.all_or_none(lambda: checkpoints.clear_away(self.path) if self.is_first else None)
        last = checkpoints.last_checkpoint(self.path)
        if last is not None:
            check_kind(last, self.training.sharding is not None)
        if self.is_first:
            logger.info(f"resuming from {last}" if last else "no complete checkpoint yet: starting from the beginning")
        return last

    def _check_same_settings(self) -> None:
        given, training = self.recipe.given, self.training
        before = read_json(self.path / RESOLVED_FILE) or {}
        old_batch, batch = before.get("sequences_per_step"), training.rows_per_step
        if old_batch not in (None, batch):
            raise ConfigError(
                f"output_dir={self.path} holds a run of {old_batch} sequences per step, not {batch}; keep "
                f"{' x '.join(BATCH)} x processes ({training.world_size} here) at {old_batch}, or choose another folder"
            )
        settled = BATCH if old_batch is not None else ()
        if (why := other_setting(self.path, given, self.recipe.command, settled)) is not None:
            raise ConfigError(f"output_dir={why}; resume with the same settings, or choose another folder")
        # What nobody gave stays as the run began: a default may have changed since.
        for name in {f.name for f in fields(MethodConfig)} & before.keys() - given.keys():
            setattr(training, name, before[name])

    def check_same_data(self, train_set: SequenceDataset) -> None:
        """The same name may stand for other data by now; a run resumed with them would be neither run."""
        before = read_json(self.path / DATA_FILE)
        if before is not None and before != (now := _describe(train_set)):
            raise ConfigError(
                f"the dataset has changed since the run in output_dir={self.path} began: {before['documents']} "
                f"documents and {before['tokens']} tokens then, {now['documents']} and {now['tokens']} now, or other "
                "text; put the old data back, or choose another folder"
            )

    def describe_run(self, train_set: SequenceDataset, prompt_kinds: Sequence[str] = ()) -> None:
        """What the run is, for people and for resuming: its recipe, every setting, its data."""
        recipe, training = self.recipe, self.training
        self.path.mkdir(parents=True, exist_ok=True)
        resolved = {**asdict(recipe.model), **asdict(recipe.data), **training.to_dict()} | {
            "push_to_hub": recipe.given.get("push_to_hub", False),  # which the run has taken from the Trainer
            "sequences_per_step": training.rows_per_step,
            "prompt_kinds": list(prompt_kinds),
            "sharding": None if training.sharding is None else asdict(training.sharding),
        }
        text = "# What was set, by recipe and flags.\n" + yaml.safe_dump(recipe.given, sort_keys=False)
        write_text(self.path / RECIPE_FILE, text)
        write_text(self.path / RESOLVED_FILE, json.dumps(resolved, indent=1, default=str))
        write_json(self.path / DATA_FILE, _describe(train_set))


def _describe(train_set: SequenceDataset) -> dict[str, object]:
    checksums = [store.checksum() for store in train_set.index.stores]
    return {"documents": len(train_set.index), "tokens": train_set.total_tokens, "checksums": checksums}
