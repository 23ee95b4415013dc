"""What the trainers of EBFT and of the baselines share: validation, costs, and what a run writes into its folder."""

from __future__ import annotations

import json
import math
import shutil
import time
from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import Trainer, TrainerCallback
from transformers.integrations import TensorBoardCallback

from ebft import TORCH_WAS_FIRST, validation
from ebft.config.training import EBFTConfig
from ebft.data.packing import SequenceDataset, evaluation_loader
from ebft.errors import ConfigError, TrainingDiverged
from ebft.method.measures import Record, as_logged, differences, estimates
from ebft.model.attention import avoid_cudnn_attention
from ebft.model.backbone import evaluating
from ebft.model.features import FeatureNetwork
from ebft.runtime import processes, sharding
from ebft.runtime.files import json_ready, read_json, read_jsonl, write_json, write_jsonl, write_text
from ebft.train import run_folder
from ebft.train.callbacks import EvalTasks
from ebft.train.run_folder import RECIPE_FILE, RESOLVED_FILE, RESULTS_FILE, Results
from ebft.train.sequences import Loaded, warn

COSTS_FILE = "spent.json"  # in a checkpoint
METRICS_FILE = "metrics.jsonl"
Inputs = dict[str, Any]  # a micro-batch
WITHOUT_WARM_UP = ("constant", "greedy", "reduce_lr_on_plateau")  # schedules


class Measured(Trainer, TrainerCallback):
    """A trainer that evaluates as EBFT does, logs what it costs, and stops when it diverges. What it does beside the
    Trainer, at the end of a step or after a checkpoint is saved, it does as its own callback.

    What its evaluations of the held-out data find before and after training, and the change between them, it keeps in
    results.json, and beside it what they find for each sequence (validation-before.jsonl, validation-after.jsonl).
    `ebft train` evaluates at both ends and writes the end when the final model is there (`by_command`); in a program of
    somebody's own, `evaluate()` before and after `train()` does the same.
    """

    method: ClassVar[str]  # the name in results.json
    title: ClassVar[str]  # for the model card
    shown: ClassVar[dict[str, str]]  # metrics in the terminal, by short names
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
    @abstractmethod
    def prepare(cls, loaded: Loaded) -> tuple[int, Callable[[], Measured]]:
        """For the commands: the rows of an epoch, and what makes the trainer."""

    @abstractmethod
    def computing(self) -> AbstractContextManager[Any]:
        """Gives the model to compute with, up to date with the one that is trained."""

    @abstractmethod
    def sample_lines(self) -> list[str]:
        """For the pages of samples; all processes call it."""

    def as_sequences(self, dataset: Any) -> SequenceDataset | None:
        return dataset

    def equip(self) -> None:
        """Give the trainer what all have, once it is made."""
        avoid_cudnn_attention()
        for callback in self.callback_handler.callbacks:
            # An evaluation before training would otherwise open the log in the working directory.
            if isinstance(callback, TensorBoardCallback) and callback.logging_dir is None:
                callback.logging_dir = f"{self.args.output_dir}/runs"
        if TORCH_WAS_FIRST and self.args.device.type == "cpu":
            warn("torch was imported before ebft: on a busy CPU this may be ten times slower; import ebft first")
        self.results: Results = {"method": self.method}
        if self.held_out is not None and self.features is not None:
            # What the numbers of `evaluate` depend on, beside the model. The name is an old one.
            self.results["ruler"] = validation.identity(self.settings, self.features, self.held_out)
        self.records: dict[str, list[Record]] = {}
        self.spent = dict.fromkeys(("seconds", "tokens", "generated_tokens", "flops"), 0.0)
        self.add_callback(self)
        if self.settings.eval_tasks:
            self.add_callback(EvalTasks(self, self.settings))

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
        start, settings = time.perf_counter(), self.settings
        loader, ends, device = evaluation_loader(settings, dataset), self.end_token_ids, settings.device
        with torch.no_grad(), self.computing() as model:
            records = validation.validate(model, self.features, loader, settings, ends, device, len(dataset))
        sharding.release(self.model)
        metrics = as_logged(estimates(records), metric_key_prefix)
        metrics[f"{metric_key_prefix}_runtime"] = time.perf_counter() - start
        with evaluating(self.model):  # TRL asks the model whether this is about training
            self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        self._stop_early()
        if given is None and metric_key_prefix == "eval":
            self._keep(metrics, records)
        return metrics

    def _stop_early(self) -> None:
        """When validation no longer gets better. The log tells, which checkpoints hold: transformers' own callback
        forgets what it has seen when a run resumes, or comes back with the patience of the checkpoint."""
        args, patience = self.args, self.settings.early_stopping_patience
        name = f"eval_{str(args.metric_for_best_model).removeprefix('eval_')}"
        sign = -1 if args.greater_is_better else 1
        best, since = math.inf, 0
        for value in (sign * entry[name] for entry in self.state.log_history if name in entry):
            is_better = best - value > self.settings.early_stopping_threshold
            best, since = (value, 0) if is_better else (best, since + 1)
        if patience is not None and since >= patience:
            self.control.should_training_stop = True
            warn(f"stopped at step {self.state.global_step}: no better {name} in {patience} evaluations")

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        if resume_from_checkpoint and "before" not in self.results and self.held_out is not None:
            self.take_over()
        self.write_results()
        trained = super().train(resume_from_checkpoint, *args, **kwargs)
        if self._evaluated != self.state.global_step or self.args.load_best_model_at_end:
            for name in ("after", "change"):  # of another model than the one that is left
                self.results.pop(name, None)
        self.results |= {"steps": self.state.global_step, "spent": dict(self.spent)}
        if not self.by_command:
            self.write_results()
        return trained

    def take_over(self) -> bool:
        """Whether a run that is resumed was measured before training, and in the same way; all processes call it."""
        kept = read_json(self.output / RESULTS_FILE), read_jsonl(self.output / "validation-before.jsonl")
        found, records = processes.from_first(kept)
        if found and records and found.get("ruler") == json_ready(self.results["ruler"]):
            self.records["before"] = records
            self.results |= {name: found[name] for name in ("before", "answers") if name in found}
        return "before" in self.results

    def _keep(self, metrics: dict[str, float], records: list[Record]) -> None:
        self._evaluated = self.state.global_step
        when = "after" if self._evaluated else "before"
        self.records[when] = records
        self.results[when] = metrics
        if when == "after" and "before" in self.records:
            self.results["change"] = as_logged(differences(records, self.records["before"]))
        if when == "before" or not (self.by_command or self.is_in_train):
            self.write_results()

    def write_results(self) -> None:
        """Records before the results that they belong to. A program leaves the folder of a run by a command alone."""
        folder = self.output
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

    def spend(self, **counts: float) -> None:
        """Count what training costs."""
        for name, value in counts.items():
            self.spent[name] += value

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        logs.update({f"spent/{name}": value for name, value in self.spent.items()})
        super().log(logs, start_time)

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> tuple[list[Any], Any]:
        # Before a step's data are loaded. What comes between the end of a step and this is not training.
        self._step_began = time.perf_counter()
        if self.state.global_step >= self.state.max_steps:
            # Resumed from the last step's checkpoint: the Trainer would take one more step before it looks.
            self.control.should_training_stop = True
            return [], None
        return super().get_batch_samples(epoch_iterator, num_batches, device)

    def stop_beyond(self, name: str, value: Tensor | float, max_reward: float = math.inf) -> None:
        """End the run if a number of this step is none, or beyond the limit. It is the same in all processes, so that
        all of them stop or none does."""
        found, step = float(value), self.state.global_step + 1
        if not (math.isfinite(found) and abs(found) <= max_reward):
            beyond = f", beyond max_reward={max_reward:g}" if math.isfinite(max_reward) else ""
            raise TrainingDiverged(f"the {name} is {found:.3g} at step {step}{beyond}; {self.way_out}")

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """A gradient can be no number where the loss is fine."""
        norm = super()._get_grad_norm(model, grad_norm)
        if self.accelerator.scaler is None:  # with float16 a gradient that is too large is dropped, and scaled down
            self.stop_beyond("gradient's norm", norm)
        return norm

    # ---- what a run leaves beside its results ------------------------------------------------------------------------

    @property
    def output(self) -> Path:
        return Path(str(self.args.output_dir))

    @property
    def checkpoint(self) -> Path:
        """Of this step, whether it is there or not."""
        return self.output / f"checkpoint-{self.state.global_step}"

    def on_train_begin(self, *_: object, **__: object) -> None:
        """A run that is resumed goes on counting; metrics from beyond its checkpoint are dropped."""
        if not (self.by_command or self.state.global_step) and (self.output / RECIPE_FILE).exists():
            raise ConfigError(f"{self.output} holds a run of the command; choose another output_dir")
        self.spent.update(read_json(self.checkpoint / COSTS_FILE) or {})
        # The Trainer would delete old checkpoints before the new one is marked.
        self._save_limit, self.args.save_total_limit = self.args.save_total_limit, None
        steps, file = self.state.max_steps, self.output / METRICS_FILE
        # The first step of a warm-up has a rate of 0.
        if self.args.get_warmup_steps(steps) >= max(steps, 1) and self.args.lr_scheduler_type not in WITHOUT_WARM_UP:
            warn(f"warm-up takes all {steps} steps; set warmup_steps=0, or train for more steps")
        if processes.rank() == 0 and file.exists():
            write_jsonl(file, [entry for entry in read_jsonl(file) if entry["step"] <= self.state.global_step])

    def on_step_end(self, *_: object, **__: object) -> None:
        step, settings, control = self.state.global_step, self.settings, self.control
        is_last = step >= self.state.max_steps
        if is_last and self.args.logging_strategy != "no":  # one shorter than `logging_steps` would leave no metrics
            control.should_log = True
        if settings.save_log_spaced and _is_power_of_two(step):
            control.should_save = True
        self.spend(seconds=time.perf_counter() - self._step_began)
        if settings.samples_every and (step % settings.samples_every == 0 or step == 1):
            lines = self.sample_lines()  # all processes take part
            if lines and processes.rank() == 0:
                file = self.output / "samples" / f"step-{step:06d}.md"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text("\n".join([f"# Samples at step {step}", "", *lines]), encoding="utf-8")

    def on_log(self, *_: object, logs: Any = None, **__: object) -> None:
        """Every log entry is a line of `metrics.jsonl`."""
        if not (processes.rank() == 0 and logs):
            return
        entry = {"step": self.state.global_step, **json_ready(logs)}
        if self.args.load_best_model_at_end and self.state.best_model_checkpoint and not self.is_in_train:
            entry["model_step"] = self.state.best_global_step  # what is measured after training is of this step's model
        self.output.mkdir(parents=True, exist_ok=True)
        with (self.output / METRICS_FILE).open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def on_save(self, *_: object, **__: object) -> None:
        """Mark the checkpoint as complete, now that everything is in it, and delete old ones."""
        if processes.rank() == 0:
            write_json(self.checkpoint / COSTS_FILE, self.spent)
        processes.barrier()  # the others have written their files too; if one has died, there will be no mark
        if processes.rank() == 0:
            run_folder.mark_complete(self.checkpoint)
            limit, best = self._save_limit, Path(self.state.best_model_checkpoint or "").name
            for old in run_folder.complete_checkpoints(self.output)[: -limit if limit else 0]:
                is_spaced = self.settings.save_log_spaced and _is_power_of_two(run_folder.step_of(old))
                if not is_spaced and old.name != best:
                    shutil.rmtree(old, ignore_errors=True)


def _is_power_of_two(step: int) -> bool:
    return step > 0 and step & (step - 1) == 0
