"""The output folder of a run: whose it is, what it holds, and whether a run may be resumed in it."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from ebft.config.recipe import Recipe, as_given
from ebft.data.packing import SequenceDataset
from ebft.errors import ConfigError
from ebft.runtime import processes
from ebft.runtime.files import json_ready, locked, read_json, write_json, write_text
from ebft.train import checkpoints
from ebft.train.output_folder import LOCK_FILE, RECIPE_FILE, holds_run, refusal

logger = logging.getLogger(__name__)

RESOLVED_FILE = "resolved.json"  # every setting as the run had it
DATA_FILE = "data.json"  # documents, tokens and checksums
RESULTS_FILE = "results.json"  # validation before and after, the change, and what they depend on

# What may change when a run is resumed: how long, and what it shows and keeps.
_MAY_CHANGE = (
    "output_dir",
    "max_steps",
    "num_train_epochs",
    "samples_every",
    "show_prompts",
    "disable_tqdm",
    "report_to",
    "run_name",
    "push_to_hub",
)
# How a model is sharded may change too; whether it is, the checkpoint says.
_MAY_CHANGE_PREFIXES = (
    "log_",
    "logging_",
    "hub_",
    "early_stopping_",
    "save_",
    "eval_",
    "per_device_eval_",
    "ddp_",
    "fsdp",
)
# These may change with the number of processes, as long as their product with it stays.
BATCH = ("per_device_train_batch_size", "gradient_accumulation_steps")


def other_setting(run: Path, given: dict[str, Any], command: str, ignored: Sequence[str] = ()) -> str | None:
    """Why the run in this folder cannot go on with these settings. With another model, other data or another method it
    would be a different run under the same name."""
    file = run / RECIPE_FILE
    before = yaml.safe_load(file.read_text()) if file.exists() else None
    if not isinstance(before, dict):
        return None
    for name in sorted(before.keys() | given.keys()):
        if name in (*_MAY_CHANGE, *ignored) or name.startswith(_MAY_CHANGE_PREFIXES):
            continue
        old, new = (as_given(name, values, command) for values in (before, given))
        if old != new:
            return f"{run} holds a run with {name}={old!r}, not {new!r}"
    return None


class RunFolder:
    FINAL = "final"

    def __init__(self, recipe: Recipe) -> None:
        self.path = Path(recipe.training.output_dir or "")
        self.recipe = recipe

    @property
    def final(self) -> Path:
        return self.path / self.FINAL

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Ours alone, for as long as the run takes; the first process holds the lock for all."""
        with ExitStack() as held:
            lock = locked(self.path / LOCK_FILE) if self.recipe.training.process_index == 0 else nullcontext()
            processes.all_or_none(lambda: held.enter_context(lock))
            yield

    @contextmanager
    def writing_final(self) -> Iterator[Path]:
        """A folder beside `final` that takes its place once everything is in it; the first process moves it."""
        partial, old = self.path / "final.partial", self.path / "final.old"
        first = self.recipe.training.process_index == 0
        if first:
            for left_over in (partial, old):
                shutil.rmtree(left_over, ignore_errors=True)
        processes.barrier()
        yield partial
        if first:
            if self.final.exists():
                self.final.rename(old)
            partial.rename(self.final)
            shutil.rmtree(old, ignore_errors=True)

    def read_results(self) -> dict[str, Any]:
        return read_json(self.path / RESULTS_FILE) or {}

    def write_results(self, results: dict[str, Any]) -> None:
        write_json(self.path / RESULTS_FILE, json_ready(results))

    def claim(self, resume: bool, method: str) -> Path | None:
        """Make sure the folder is ours to write in; returns the checkpoint to resume from. All processes call it."""
        output, training = self.path, self.recipe.training
        if (why := refusal(self.path, resume)) is not None:
            raise ConfigError(why)
        if not holds_run(self.path):
            return None
        made_by = self.read_results().get("method", "ebft")
        if made_by != method:
            raise ConfigError(f"output_dir={output} holds a run of {made_by}, not of {method}; choose another folder")
        self._check_same_settings()
        first = training.process_index == 0
        processes.all_or_none(self._clear_away if first else lambda: None)
        last = checkpoints.last_checkpoint(output)
        if last is not None:
            checkpoints.check_kind(last, training.sharding is not None)
        if first:
            logger.info(f"resuming from {last}" if last else "no complete checkpoint yet: starting from the beginning")
        return last

    def _clear_away(self) -> None:
        """What cannot be resumed from: checkpoints that were cut off or have been damaged since."""
        for cut_off in checkpoints.remove_incomplete(self.path):
            logger.info("%s was cut off while it was written; it is not used", cut_off.name)
        for line in checkpoints.set_damaged_aside(self.path):
            logger.warning("%s; it is set aside, and the one before is used", line)

    def _check_same_settings(self) -> None:
        training = self.recipe.training
        old_batch = (read_json(self.path / RESOLVED_FILE) or {}).get("sequences_per_step")
        if old_batch not in (None, batch := training.rows_per_step):
            raise ConfigError(
                f"output_dir={self.path} holds a run of {old_batch} sequences per step, not {batch}; choose "
                f"per_device_train_batch_size x gradient_accumulation_steps x processes ({training.world_size} here) "
                f"so that it is {old_batch}, or choose another folder"
            )
        settled = BATCH if old_batch is not None else ()
        if (why := other_setting(self.path, self.recipe.given, self.recipe.command, settled)) is not None:
            raise ConfigError(f"output_dir={why}; resume with the same settings, or choose another folder")

    def check_same_data(self, train_set: SequenceDataset) -> None:
        """The same name may stand for other data by now; a run resumed with them would be neither run."""
        now = _describe(train_set)
        before = read_json(self.path / DATA_FILE) or now
        if before != now:
            raise ConfigError(
                f"the dataset has changed since the run in output_dir={self.path} began: {before['documents']} "
                f"documents and {before['tokens']} tokens then, {now['documents']} and {now['tokens']} now, or other "
                "text; put the old data back, or choose another folder"
            )

    def describe_run(self, train_set: SequenceDataset, prompt_kinds: Sequence[str] = ()) -> None:
        """What the run is, for people and for resuming: its recipe, every setting, its data."""
        recipe, training = self.recipe, self.recipe.training
        self.path.mkdir(parents=True, exist_ok=True)
        resolved = {**asdict(recipe.model), **asdict(recipe.data), **training.to_dict()}
        resolved["push_to_hub"] = recipe.given.get("push_to_hub", False)  # which the run has taken from the Trainer
        resolved["sequences_per_step"] = training.rows_per_step
        resolved["prompt_kinds"] = list(prompt_kinds)
        resolved["sharding"] = None if training.sharding is None else asdict(training.sharding)
        text = "# What was set, by recipe and flags.\n" + yaml.safe_dump(recipe.given, sort_keys=False)
        write_text(self.path / RECIPE_FILE, text)
        write_text(self.path / RESOLVED_FILE, json.dumps(resolved, indent=1, default=str))
        write_json(self.path / DATA_FILE, _describe(train_set))


def outcome(trainer: Any) -> dict[str, Any]:
    """What the results of a run say once training has ended."""
    spent = {key.removeprefix("spent/"): value for key, value in trainer.costs.totals().items()}
    return {"steps": trainer.state.global_step, "spent": spent}


def _describe(train_set: SequenceDataset) -> dict[str, Any]:
    return {
        "documents": len(train_set.index),
        "tokens": train_set.total_tokens,
        "checksums": [store.checksum() for store in train_set.index.stores],
    }
