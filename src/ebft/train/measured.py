"""Validation before, in and after training, the same for EBFT and the baselines."""

from __future__ import annotations

import json
import math
import time
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import Trainer, TrainerCallback
from transformers.integrations import TensorBoardCallback

from ebft import validation
from ebft.config.training import EBFTConfig
from ebft.data.packing import SequenceDataset, evaluation_loader
from ebft.errors import ConfigError, TrainingDiverged
from ebft.method.measures import Record, as_logged, differences, estimates
from ebft.model.attention import avoid_cudnn_attention
from ebft.model.backbone import evaluating
from ebft.model.features import FeatureNetwork
from ebft.runtime import processes, sharding
from ebft.runtime.files import json_ready, read_json, read_jsonl, write_json, write_jsonl, write_text
from ebft.runtime.timing import DeferredChecks
from ebft.train import callbacks
from ebft.train.run_folder import RECIPE_FILE, RESOLVED_FILE, RESULTS_FILE
from ebft.train.sequences import Loaded


class Measured(Trainer):
    """A trainer that evaluates as EBFT does, logs what it costs, and stops when it diverges.

    What its evaluations of the held-out data find before and after training, and the change between them, it keeps in
    results.json, and beside it what they find for each sequence (validation-before.jsonl, validation-after.jsonl).
    `ebft train` evaluates at both ends and writes the end when the final model is there (`by_command`); in a program of
    somebody's own, `evaluate()` before and after `train()` does the same.
    """

    method: ClassVar[str]  # the name in results.json
    title: ClassVar[str]  # for the model card
    shown: ClassVar[dict[str, str]]  # metrics in the terminal, by short names
    needs_anchors: ClassVar[bool] = False  # the training text must have one
    model: Any
    control: Any
    processing_class: Any
    settings: EBFTConfig
    held_out: SequenceDataset | None = None
    features: FeatureNetwork | None = None
    end_token_ids: Tensor | None = None
    way_out = "try a lower learning_rate"
    by_command = False
    _evaluated: int | None = None  # the step of the last evaluation of the held-out data

    @classmethod
    def build(cls, loaded: Loaded) -> Measured:
        """As the commands build it."""
        raise NotImplementedError

    @classmethod
    def rows(cls, loaded: Loaded) -> int:
        """Of an epoch, as --dry-run counts its steps."""
        return len(loaded.train_set)

    def equip(self, *own: TrainerCallback) -> None:
        """Give the trainer what all have, once it is made. What `own` callbacks write into a checkpoint is there before
        it is marked as complete."""
        avoid_cudnn_attention()
        for callback in self.callback_handler.callbacks:
            # An evaluation before training would otherwise open the log in the working directory.
            if isinstance(callback, TensorBoardCallback) and callback.logging_dir is None:
                callback.logging_dir = f"{self.args.output_dir}/runs"
        self.deferred_checks, self.costs = DeferredChecks(), callbacks.CostTracker(self)
        self.results: dict[str, Any] = {"method": self.method}
        self.records: dict[str, list[Record]] = {}
        self._check_gradients()
        for callback in (callbacks.MetricsFile(self), self.costs, callbacks.Samples(self), *own):
            self.add_callback(callback)
        self.add_callback(callbacks.Checkpoints(self))
        if self.settings.eval_tasks:
            self.add_callback(callbacks.EvalTasks(self, self.settings))

    def compute_model(self) -> Any:
        """The model to compute with, up to date with the one that is trained."""
        raise NotImplementedError

    def computing(self) -> AbstractContextManager[Any]:
        """What `compute_model` computes in."""
        raise NotImplementedError

    def as_sequences(self, dataset: Any) -> SequenceDataset | None:
        return dataset

    def sample_lines(self) -> list[str]:
        """For the pages of samples; all processes call it."""
        raise NotImplementedError

    # ---- validation ------------------------------------------------------------------------------------------------

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
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        if given is None and metric_key_prefix == "eval":
            self._keep(metrics, records)
        return metrics

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        if resume_from_checkpoint and "before" not in self.results and self.held_out is not None:
            self.take_over()
        self.write_results()
        trained = super().train(resume_from_checkpoint, *args, **kwargs)
        if self._evaluated != self.state.global_step or self.args.load_best_model_at_end:
            for name in ("after", "change"):  # of another model than the one that is left
                self.results.pop(name, None)
        spent = {key.removeprefix("spent/"): value for key, value in self.costs.totals().items()}
        self.results |= {"steps": self.state.global_step, "spent": spent}
        if not self.by_command:
            self.write_results()
        return trained

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What the numbers of `evaluate` depend on, beside the model."""
        assert self.features is not None
        assert self.held_out is not None
        return validation.identity(self.settings, self.features, self.held_out)

    def take_over(self) -> bool:
        """Whether a run that is resumed was measured before training, and in the same way; all processes call it."""
        folder = Path(str(self.args.output_dir))
        kept = read_json(folder / RESULTS_FILE), read_jsonl(folder / "validation-before.jsonl")
        found, records = processes.from_first(kept)
        self.results["ruler"] = self.identity  # the name is an old one
        if found and records and found.get("ruler") == json_ready(self.identity):
            self.records["before"] = records
            self.results |= {name: found[name] for name in ("before", "answers") if name in found}
        return "before" in self.results

    def _keep(self, metrics: dict[str, float], records: list[Record]) -> None:
        self._evaluated = self.state.global_step
        when = "after" if self._evaluated else "before"
        self.records[when] = records
        self.results |= {"ruler": self.identity, when: metrics}
        if when == "after" and "before" in self.records:
            self.results["change"] = as_logged(differences(records, self.records["before"]))
        if when == "before" or not (self.by_command or self.is_in_train):
            self.write_results()

    def write_results(self) -> None:
        """Records before the results that they belong to. A program leaves the folder of a run by a command alone."""
        folder = Path(str(self.args.output_dir))
        if processes.rank() != 0 or (not self.by_command and (folder / RECIPE_FILE).exists()):
            return
        folder.mkdir(parents=True, exist_ok=True)
        if not self.by_command:
            resolved = {"model": getattr(self.model.config, "_name_or_path", None), **self.args.to_dict()}
            write_text(folder / RESOLVED_FILE, json.dumps(resolved, indent=1, default=str))
        for when in self.records.keys() & self.results.keys():
            write_jsonl(folder / f"validation-{when}.jsonl", self.records[when])
        write_json(folder / RESULTS_FILE, json_ready(self.results))

    # ---- training --------------------------------------------------------------------------------------------------

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        logs.update(self.costs.totals())
        super().log(logs, start_time)

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> tuple[list[Any], Any]:
        self.costs.begin_step()
        if self.state.global_step >= self.state.max_steps:
            # Resumed from the last step's checkpoint: the Trainer would take one more step before it looks.
            self.control.should_training_stop = True
            return [], None
        return super().get_batch_samples(epoch_iterator, num_batches, device)

    def stop_beyond(self, name: str, value: Tensor, max_reward: float = math.inf) -> None:
        """End the run if a number of this step is none, or beyond the limit, once it has arrived. It is the same in all
        processes, so that all of them stop or none does."""
        step = self.state.global_step + 1

        def check(found: float) -> None:
            if not (math.isfinite(found) and abs(found) <= max_reward):
                beyond = f", beyond max_reward={max_reward:g}" if math.isfinite(max_reward) else ""
                raise TrainingDiverged(f"the {name} is {found:.3g} at step {step}{beyond}; {self.way_out}")

        self.deferred_checks.add(value, check)

    def _check_gradients(self) -> None:
        """Look at the norm by which the Trainer clips: a gradient can be no number where the loss is fine."""
        clip = self.accelerator.clip_grad_norm_

        def clip_and_check(*args: Any, **kwargs: Any) -> Any:
            norm = clip(*args, **kwargs)
            self.stop_beyond("gradient's norm", torch.as_tensor(norm))
            return norm

        if self.accelerator.scaler is None:  # with float16 a gradient that is too large is dropped, and scaled down
            self.accelerator.clip_grad_norm_ = clip_and_check
