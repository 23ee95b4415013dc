"""Validation before, in and after training, the same for EBFT and the baselines."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer, TrainerCallback, TrainerState, TrainingArguments

from ebft import validation
from ebft.config.training import EBFTConfig
from ebft.data.packing import SequenceDataset, evaluation_loader
from ebft.errors import ConfigError
from ebft.method.measures import Record, as_logged, differences, estimates
from ebft.model.attention import avoid_cudnn_attention
from ebft.model.backbone import evaluating
from ebft.model.features import FeatureNetwork
from ebft.runtime import processes, sharding
from ebft.runtime.files import json_ready, read_json, read_jsonl, write_json, write_jsonl, write_text
from ebft.runtime.timing import DeferredChecks
from ebft.train import callbacks
from ebft.train.checkpoints import RECIPE_FILE
from ebft.train.costs import CostTracker
from ebft.train.run_folder import RESOLVED_FILE, RESULTS_FILE


class Measured(Trainer):
    """A trainer that evaluates as EBFT does, logs what it costs, and stops when it diverges."""

    model: Any
    control: Any
    processing_class: Any
    settings: EBFTConfig
    held_out: SequenceDataset | None = None
    features: FeatureNetwork | None = None
    end_token_ids: Tensor | None = None
    evaluated: validation.Evaluated | None = None  # the last evaluation of the held-out data
    way_out = "try a lower learning_rate"

    def equip(self, method: str, *state: TrainerCallback) -> None:
        """Give the trainer what all have, once it is made. `state` are callbacks that write something into checkpoints:
        before these are marked as complete."""
        settings = self.settings
        avoid_cudnn_attention()
        callbacks.keep_tensorboard_here(self)
        self.costs, self.deferred_checks = CostTracker(), DeferredChecks()
        callbacks.check_gradients(self, self.way_out)
        self.before_after = BeforeAfter(self, method)
        own = [callbacks.MetricsFile(str(settings.output_dir)), self.costs, *state, callbacks.Checkpoints(self)]
        if settings.eval_tasks:
            options, every = settings.eval_task_options, settings.eval_tasks_every
            own.append(callbacks.EvalTasks(self, settings.eval_tasks, options, every))
        for callback in (*own, self.before_after):
            self.add_callback(callback)

    def compute_model(self) -> Any:
        """The model to compute with, up to date with the one that is trained."""
        raise NotImplementedError

    def computing(self) -> AbstractContextManager[Any]:
        """What `compute_model` computes in."""
        raise NotImplementedError

    def as_sequences(self, dataset: Any) -> SequenceDataset | None:
        return dataset

    def validation_identity(self) -> dict[str, Any]:
        """What the numbers of `evaluate` depend on, beside the model."""
        assert self.features is not None
        assert self.held_out is not None
        return validation.identity(self.settings, self.features, self.held_out)

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Cross-entropy over all and answer tokens, feature-matching loss and whitened proxy, with standard errors.

        Rollouts are drawn with `eval_seed`, so that evaluations compare, and training is not disturbed.
        """
        given = self.as_sequences(eval_dataset)
        dataset = self.held_out if given is None else given
        if dataset is None or self.features is None:
            raise ConfigError("evaluation needs validation data: validation_split, validation_dataset or eval_dataset")
        self.deferred_checks.run(wait=True)  # a model that has diverged is not worth measuring
        start, settings = time.perf_counter(), self.settings
        with torch.no_grad(), self.computing():
            model, loader = self.compute_model(), evaluation_loader(settings, dataset)
            ends, device = self.end_token_ids, settings.device
            records = validation.validate(model, self.features, loader, settings, ends, device, len(dataset))
        sharding.release(self.model)
        metrics = as_logged(estimates(records), metric_key_prefix)
        metrics[f"{metric_key_prefix}_runtime"] = time.perf_counter() - start
        with evaluating(self.model):  # TRL asks the model whether this is about training
            self.log(metrics)
        if given is None and metric_key_prefix == "eval":
            self.evaluated = validation.Evaluated(self.state.global_step, metrics, records)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        logs.update(self.costs.totals())
        super().log(logs, start_time)

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> tuple[list[Any], Any]:
        if self.state.global_step >= self.state.max_steps:
            # Resumed from the last step's checkpoint: the Trainer would take one more step before it looks.
            self.control.should_training_stop = True
            return [], None
        return super().get_batch_samples(epoch_iterator, num_batches, device)


class BeforeAfter(TrainerCallback):
    """Keeps in results.json what the trainer's own evaluations find before and after training and the change between
    them, and beside it what they find for each sequence (validation-before.jsonl, validation-after.jsonl).

    `ebft train` evaluates at both ends and writes the end itself, when the model is there; a program of somebody's own
    may call `evaluate()`.
    """

    by_command = trained = False

    def __init__(self, trainer: Any, method: str = "ebft") -> None:
        self.trainer, self.folder = trainer, Path(trainer.args.output_dir)
        self.results: dict[str, Any] = {"method": method}
        self.before: list[Record] = []

    def take_over(self) -> None:
        """What a run that is resumed has measured before training, if in the same way; all processes call it."""
        found, records = processes.from_first(
            (read_json(self.folder / RESULTS_FILE), read_jsonl(self.folder / "validation-before.jsonl"))
        )
        self.results["ruler"] = self.trainer.validation_identity()  # what the numbers depend on; the name is an old one
        if found and records and found.get("ruler") == json_ready(self.results["ruler"]):
            self.before = records
            self.results |= {name: found[name] for name in ("before", "answers") if name in found}

    def on_evaluate(self, args: object, state: TrainerState, *_: object, metrics: object = None, **__: object) -> None:
        evaluated = self.trainer.evaluated
        if evaluated is None or evaluated.metrics is not metrics:
            return  # of other data than the trainer's own
        if "ruler" not in self.results:
            self.results["ruler"] = self.trainer.validation_identity()
        if not state.global_step:
            self.before, self.results["before"] = evaluated.records, metrics
            self.write("before", evaluated.records)
        elif self.trained:
            self._ended(state)

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, *_: object, **__: object) -> None:
        self.trained = False
        if state.global_step and "before" not in self.results and self.trainer.held_out is not None:
            self.take_over()
        for ended in ("after", "change", "steps", "spent"):  # of training that is continued
            self.results.pop(ended, None)
        if self.write() and not self.by_command:
            resolved = {"model": getattr(self.trainer.model.config, "_name_or_path", None), **args.to_dict()}
            write_text(self.folder / RESOLVED_FILE, json.dumps(resolved, indent=1, default=str))

    def on_train_end(self, args: TrainingArguments, state: TrainerState, *_: object, **__: object) -> None:
        self.trained = True
        self._ended(state, of_this_model=not args.load_best_model_at_end)

    def _ended(self, state: TrainerState, of_this_model: bool = True) -> None:
        spent = {key.removeprefix("spent/"): value for key, value in self.trainer.costs.totals().items()}
        self.results |= {"steps": state.global_step, "spent": spent}
        evaluated, records = self.trainer.evaluated, []
        if evaluated is not None and evaluated.step == state.global_step and of_this_model:
            records, self.results["after"] = evaluated.records, evaluated.metrics
            if self.before:
                self.results["change"] = as_logged(differences(records, self.before))
        self.write("after", records, results=not self.by_command)

    def write(self, when: str = "", records: Sequence[Record] = (), results: bool = True) -> bool:
        """Records before the results that they belong to. Returns whether this process writes, and not into the folder
        of a run by a command."""
        if processes.rank() != 0 or (not self.by_command and (self.folder / RECIPE_FILE).exists()):
            return False
        self.folder.mkdir(parents=True, exist_ok=True)
        if records:
            write_jsonl(self.folder / f"validation-{when}.jsonl", records)
        if results:
            write_json(self.folder / RESULTS_FILE, json_ready(self.results))
        return True
