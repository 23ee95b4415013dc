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
from transformers import TrainerCallback

from ebft.config.method import MethodConfig
from ebft.config.recipe import Recipe, as_given
from ebft.data.packing import SequenceDataset
from ebft.errors import ConfigError
from ebft.method.measures import Record, as_logged, differences
from ebft.runtime import processes
from ebft.runtime.files import json_ready, locked, read_json, read_jsonl, write_json, write_jsonl, write_text
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
    """Why the run in this folder cannot go on with these settings. With another model, other data or another method it
    would be a different run under the same name."""
    file = run / RECIPE_FILE
    before: Any = yaml.safe_load(file.read_text()) if file.exists() else None
    for name in sorted(before.keys() | given.keys()) if isinstance(before, dict) else ():
        if name in ignored or _MAY_CHANGE.fullmatch(name):
            continue
        old, new = (as_given(name, values, command) for values in (before, given))
        if old != new:
            return f"{run} holds a run with {name}={old!r}, not {new!r}"
    return None


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
            raise ConfigError(
                f"output_dir={self.path} holds a run of {made_by}, not of {method}; choose another folder"
            )
        self._check_same_settings()
        processes.all_or_none(self._clear_away if self.is_first else lambda: None)
        last = checkpoints.last_checkpoint(self.path)
        if last is not None:
            checkpoints.check_kind(last, self.training.sharding is not None)
        if self.is_first:
            logger.info(f"resuming from {last}" if last else "no complete checkpoint yet: starting from the beginning")
        return last

    def _clear_away(self) -> None:
        """What cannot be resumed from: checkpoints that were cut off or have been damaged since."""
        for cut_off in checkpoints.remove_incomplete(self.path):
            logger.info("%s was cut off while it was written; it is not used", cut_off.name)
        for line in checkpoints.set_damaged_aside(self.path):
            logger.warning("%s; it is set aside, and the one before is used", line)

    def _check_same_settings(self) -> None:
        before = read_json(self.path / RESOLVED_FILE) or {}
        old_batch, batch = before.get("sequences_per_step"), self.training.rows_per_step
        if old_batch not in (None, batch):
            raise ConfigError(
                f"output_dir={self.path} holds a run of {old_batch} sequences per step, not {batch}; choose "
                f"per_device_train_batch_size x gradient_accumulation_steps x processes ({self.training.world_size} "
                f"here) so that it is {old_batch}, or choose another folder"
            )
        settled = BATCH if old_batch is not None else ()
        if (why := other_setting(self.path, self.recipe.given, self.recipe.command, settled)) is not None:
            raise ConfigError(f"output_dir={why}; resume with the same settings, or choose another folder")
        # What nobody gave stays as the run began: a default may have changed since.
        for name in {f.name for f in fields(MethodConfig)} & before.keys() - self.recipe.given.keys():
            setattr(self.training, name, before[name])

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
        recipe, training = self.recipe, self.training
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


def _describe(train_set: SequenceDataset) -> dict[str, Any]:
    stores = train_set.index.stores
    checksums = [store.checksum() for store in stores]
    return {"documents": len(train_set.index), "tokens": train_set.total_tokens, "checksums": checksums}


class BeforeAfter(TrainerCallback):
    """Keeps in results.json what the trainer's own evaluations find before and after training and the change between
    them, and beside it what they find for each sequence (validation-before.jsonl, validation-after.jsonl).

    `ebft train` evaluates at both ends and writes the end itself, when the model is there; a program of somebody's own
    may call `evaluate()`.
    """

    by_command = False

    def __init__(self, trainer: Any, method: str = "ebft") -> None:
        self.trainer, self.trained = trainer, False
        self.results: dict[str, Any] = {"method": method}
        self.before: list[Record] = []
        self.folder = Path(trainer.args.output_dir)

    def take_over(self) -> None:
        """What a run that is resumed has measured before training, if in the same way; all processes call it."""
        found, records = processes.from_first(
            (read_json(self.folder / RESULTS_FILE), read_jsonl(self._records("before")))
        )
        self.results["ruler"] = self.trainer.validation_identity()  # what the numbers depend on; the name is an old one
        if found and records and found.get("ruler") == json_ready(self.results["ruler"]):
            self.before = records
            self.results |= {name: found[name] for name in ("before", "answers") if name in found}

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        evaluated = self.trainer.evaluated
        if evaluated is None or evaluated.metrics is not metrics:
            return  # of other data than the trainer's own
        if "ruler" not in self.results:
            self.results["ruler"] = self.trainer.validation_identity()
        if not state.global_step:
            self.before, self.results["before"] = evaluated.records, metrics
            self._write_records("before", evaluated.records)
            self.write()
        elif self.trained:
            self._ended(state)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trained = False
        if state.global_step and "before" not in self.results and self.trainer.eval_dataset is not None:
            self.take_over()
        for ended in ("after", "change", "steps", "spent"):  # of training that is continued
            self.results.pop(ended, None)
        self.write()
        if self.writes and not self.by_command:
            name = getattr(self.trainer.model.config, "_name_or_path", None)
            write_text(
                self.folder / RESOLVED_FILE, json.dumps({"model": name, **args.to_dict()}, indent=1, default=str)
            )

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trained = True
        self._ended(state, of_this_model=not args.load_best_model_at_end)

    def _ended(self, state: Any, of_this_model: bool = True) -> None:
        spent = {key.removeprefix("spent/"): value for key, value in self.trainer.costs.totals().items()}
        self.results |= {"steps": state.global_step, "spent": spent}
        evaluated = self.trainer.evaluated
        if evaluated is not None and evaluated.step == state.global_step and of_this_model:
            self.results["after"] = evaluated.metrics
            if self.before:
                self.results["change"] = as_logged(differences(evaluated.records, self.before))
            self._write_records("after", evaluated.records)
        if not self.by_command:
            self.write()

    @property
    def writes(self) -> bool:
        """Whether this process writes, and not into the folder of a run by a command."""
        return processes.rank() == 0 and (self.by_command or not (self.folder / RECIPE_FILE).exists())

    def write(self) -> None:
        if self.writes:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(self.folder / RESULTS_FILE, json_ready(self.results))

    def _write_records(self, when: str, records: list[Record]) -> None:
        """Before the results that they belong to: those in results.json have their records."""
        if self.writes:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_jsonl(self._records(when), records)

    def _records(self, when: str) -> Path:
        return self.folder / f"validation-{when}.jsonl"
