"""EBFTTrainer: transformers' Trainer with one EBFT iteration per optimiser step.

The trainer collects the micro-batches of an accumulation window (`get_batch_samples`), makes the rollouts, features,
rewards and advantages for all of them at once (`iteration.prepare_window`), and then takes the gradient of the loss
micro-batch by micro-batch (`compute_loss`). Both sums of the loss are divided by the window's token counts, so that k
micro-batches give the gradient of one batch of k times the size. Every rollout is seeded by (run, step, sequence).

With several processes the window is split between them, and counts, metrics and gradients are added up
(`runtime.processes`): k processes do the same steps as one with the same number of sequences per step. With `fsdp` each
holds only a part of the networks; to transformers and accelerate it still looks like plain data parallelism.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback, set_seed
from transformers.trainer import SCHEDULER_NAME

from ebft import fetch, loading
from ebft.config.training import EBFTConfig
from ebft.data import packing
from ebft.data.packing import DocumentIndex, SequenceDataset, collate, end_token_ids, pad_token_id, tokenize_rows
from ebft.data.row_format import check_tokenizer
from ebft.errors import ConfigError, DataError
from ebft.iteration import Window, check_sequences, loss_of, prepare_window
from ebft.model.backbone import input_embeddings
from ebft.runtime import processes, sharding
from ebft.runtime.timing import Clock
from ebft.train import report
from ebft.train.measured import Inputs, Measured
from ebft.train.networks import Networks, disable_dropout
from ebft.train.sequences import ENDS_LEFT_OUT, Loaded, look_at_answers, look_at_copies, look_at_lengths, warn

# What a window says of itself also where nothing was rolled out.
_OF_EVERY_STEP = ("ebft/anchors", "ebft/packed_tokens", "ebft/policy_loss", "ebft/cross_entropy", "kl")


class EBFTTrainer(Measured):
    """Fine-tune a causal language model with EBFT.

    Args:
        model: a transformers model, or a folder or hub name to load one from (in float32).
        args: the settings.
        train_dataset: rows with `text`, `prompt` and `completion`, or `messages` (a `datasets.Dataset` or a list of
            dictionaries), or a `SequenceDataset` made before.
        eval_dataset: the same, for evaluation.
        processing_class: the tokenizer; loaded with the model if that is given by name.
        peft_config: train an adapter; the frozen network is then the base model with the adapter off.
        callbacks: beside the standard ones (metrics file, checkpoint marks, progress).
    """

    method, title = "ebft", "Energy-Based Fine-Tuning"
    shown: ClassVar = {"reward": "reward", "ebft/cfm": "cfm", "ebft/cross_entropy": "ce", "ebft/distinct": "distinct"}
    args: EBFTConfig
    lr_scheduler: Any
    optimizer: Any
    way_out = "try a lower learning_rate, a gamma above 0, or whitening=reference, and look at the last samples"

    def __init__(
        self,
        model: Any,
        args: EBFTConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        peft_config: Any = None,
        callbacks: list[TrainerCallback] | None = None,
        **kwargs: Any,
    ) -> None:
        self.settings = args = args or EBFTConfig(output_dir="ebft-output")
        processes.start(args)
        if isinstance(model, str):
            model = fetch.resolve(model)
            processing_class = processing_class or AutoTokenizer.from_pretrained(model)
            model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        if processing_class is not None:
            check_tokenizer(processing_class, len(input_embeddings(model)))
        if peft_config is not None:
            set_seed(args.seed)  # the Trainer does so only later; the adapter's random weights belong to the run
            model = loading.add_adapter(model, peft_config)
        if args.disable_dropout:
            disable_dropout(model)
        self.processing_class = processing_class  # the Trainer sets it later
        self.end_token_ids = end_token_ids(processing_class, args.completions_end)
        self.clock = Clock(args.device)
        self.window: Window | None = None
        self._observed: list[dict[str, float]] = []  # metrics of windows since the last log entry
        self.sharded = args.sharding is not None
        given, train_dataset = train_dataset, self.as_sequences(train_dataset)
        try:
            self.held_out = self.as_sequences(eval_dataset)
        except DataError as error:
            raise DataError(f"the validation data: {error}; or hold out other or more documents") from None
        if given is not train_dataset:  # who brings sequences has looked at them before
            look_at_lengths(model, train_dataset, "context_length", args.document_masks)
            if args.leaves_ends_out:
                warn(ENDS_LEFT_OUT)
            if self.held_out is not None:
                look_at_copies(train_dataset.index, self.held_out.index)
        self.networks = Networks(model, args, processing_class)
        data = {"data_collator": collate, "train_dataset": train_dataset, "eval_dataset": self.held_out}
        super().__init__(model, args, processing_class=processing_class, callbacks=callbacks, **data, **kwargs)
        # accelerate leaves the model alone: it sees plain data parallelism, and ebft adds gradients up itself.
        if self.sharded:  # on its device already, and wants neither a wrapper nor autocast
            self.accelerator.prepare_model = lambda model, *args, **kwargs: model
            self.accelerator.clip_grad_norm_ = sharding.clip_gradients
        elif args.world_size > 1:  # no wrapper: `runtime.processes` says why
            self.accelerator.prepare_model = partial(self.accelerator.prepare_model, evaluation_mode=True)
        # compute_loss divides by the counts of the whole window: the Trainer must not divide by the accumulation again.
        self.model_accepts_loss_kwargs = True
        self.features = self.networks.features
        self.equip()

    @classmethod
    def prepare(cls, loaded: Loaded) -> tuple[int, Callable[[], EBFTTrainer]]:
        recipe, data = loaded.recipe, (loaded.train_set, loaded.validation_set)
        given = (loaded.model, recipe.training, *data, loaded.tokenizer, loading.peft_config(recipe))
        return len(loaded.train_set), lambda: cls(*given)

    @contextmanager
    def computing(self) -> Iterator[Any]:
        with self.compute_loss_context_manager():
            yield self.networks.compute_model()

    def compute_loss_context_manager(self) -> ExitStack:
        return ExitStack() if self.networks.computes_in_bf16 else super().compute_loss_context_manager()

    def sample_lines(self) -> list[str]:
        return [] if self.window is None else report.sample_lines(self.window.example, self.processing_class)

    # ---- one iteration -----------------------------------------------------------------------------------------

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        if not batches:
            return batches, None
        step, features = self.state.global_step, self.networks.features
        with self.computing() as model:
            window = prepare_window(model, features, batches, self.args, step, self.end_token_ids, self.clock)
        self.window = window
        return window.micro_batches, window.totals["generated_tokens"]

    def training_step(self, model: nn.Module, inputs: Inputs, num_items_in_batch: Any = None) -> Tensor:
        with self.clock.phase("update"):
            loss = super().training_step(model, inputs, num_items_in_batch)
        if self.accelerator.sync_gradients:  # the window's last micro-batch
            self._finish_window()
        # What is returned is only logged, as the mean over processes; these are parts of a sum.
        return loss * self.args.world_size

    def compute_loss(
        self, model: nn.Module, inputs: Inputs, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        networks = self.networks
        trained = model if networks.working is None else networks.working.model.train(model.training)
        terms = loss_of(trained, inputs, self.args, networks.frozen_reference)
        sharding.release(networks.reference)
        found = {"loss": terms.loss, "ebft/policy_loss": terms.policy, "kl": terms.kl}
        if self.args.gamma:
            found["ebft/cross_entropy"] = terms.cross_entropy
        for name, value in found.items():
            if value is not None and self.window is not None:
                self.window.add(name, value)
        return (terms.loss, terms) if return_outputs else terms.loss

    def on_pre_optimizer_step(self, *_: object, **__: object) -> None:
        self._optimizer_began = self.clock.mark()

    def on_optimizer_step(self, *_: object, **__: object) -> None:
        self.clock.add("optimizer", self._optimizer_began)
        if self.networks.features.source == "average":
            self.networks.features.update_average(self.model)

    def _finish_window(self) -> None:
        """Add up what all micro-batches of all processes found: the gradients, and what is logged about the loss."""
        if self.args.world_size > 1 and not self.sharded:  # shards are summed by the backward pass
            with self.clock.phase("exchange"):
                processes.sum_gradients(self.model)
        window = self.window
        assert window is not None
        # Asked here, where the GPU has the numbers of the rollouts behind it.
        totals = processes.sum_over_processes(window.loss_sums)
        found = {name: float(value) for name, value in (window.metrics | totals).items()}
        self.stop_beyond("mean reward", found["reward"], self.args.max_reward)
        # Of a broken model all completions are the same, and nothing of them comes into the loss.
        self.stop_beyond("entropy", found["entropy"])
        self.stop_beyond("loss", found.pop("loss"))
        if not found["ebft/anchors"]:  # it says nothing about rollouts
            found = {name: found[name] for name in _OF_EVERY_STEP if name in found}
        self._observed.append(found)
        self._count_costs({name: float(count) for name, count in window.totals.items()})

    # ---- counts ------------------------------------------------------------------------------------------------

    def _count_costs(self, counts: dict[str, float]) -> None:
        """One pass over everything to roll out, one of the frozen network, the update, one more for the KL term."""
        self.state.num_input_tokens_seen += int(counts["sequences"]) * self.args.context_length
        flops = self.networks.flops
        rows = counts["trained_rows"] + (counts["tokens"] if self.args.gamma else 0)  # with logits
        total = flops.over(counts["packed_tokens"], counts["generated_tokens"])
        total += counts["scored_tokens"] * flops.of_features(self.networks.features)
        total += flops.over(counts["trained_tokens"], rows) * (flops.update + bool(self.args.kl_weight))
        self.spend(tokens=counts["tokens"], generated_tokens=counts["generated_tokens"], flops=total)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs and self._observed:
            for name in dict.fromkeys(name for found in self._observed for name in found):
                values = [found[name] for found in self._observed if name in found]
                logs[name] = sum(values) / len(values)
            seconds = {f"ebft/seconds_{name}": s / len(self._observed) for name, s in self.clock.read().items()}
            logs |= {**seconds, "step_time": sum(seconds.values())}
            logs["ebft/tokens_per_second"] = logs["ebft/packed_tokens"] / logs["step_time"]
            if torch.cuda.is_available():
                logs["ebft/peak_memory_gib"] = torch.cuda.max_memory_allocated() / 2**30
            logs["num_tokens"] = self.state.num_input_tokens_seen
            self._observed.clear()
        super().log(logs, start_time)

    # ---- data --------------------------------------------------------------------------------------------------

    def get_train_dataloader(self) -> DataLoader:
        return packing.train_loader(self.args, self.train_dataset)

    def as_sequences(self, dataset: Any) -> SequenceDataset | None:
        """Rows of text as sequences; an error if no rollout can begin in them."""
        args, tokenizer, found = self.settings, self.processing_class, dataset
        if dataset is not None and not isinstance(dataset, SequenceDataset):
            if tokenizer is None:
                raise ConfigError("rows of text need a tokenizer; pass processing_class=")
            store = tokenize_rows(dataset, tokenizer)
            found = SequenceDataset(DocumentIndex.of(store), args.context_length, args.packing, pad_token_id(tokenizer))
            look_at_answers(store, tokenizer)
        if found is not None:
            check_sequences(found, args, self.end_token_ids)
        return found

    # ---- checkpoints; of a sharded model every process saves and loads its part, whatever their number ---------------

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """An ordinary model, put together by the first process; in a checkpoint, everybody's shards."""
        folder = Path(output_dir or str(self.args.output_dir))
        sharding.release(self.model)
        if not self.sharded:
            super().save_model(output_dir, _internal_call)
        elif hasattr(self.model, "disable_adapter") or not _internal_call:
            weights = sharding.gathered(self.model)
            if self.args.should_save:
                self._save(str(folder), state_dict=weights)
        elif self.args.should_save:
            folder.mkdir(parents=True, exist_ok=True)
            for part in (self.model.config, self.model.generation_config, self.processing_class):
                if part is not None:
                    part.save_pretrained(folder)
        if _internal_call and self.sharded:
            sharding.save(folder / sharding.MODEL, sharding.weights(self.model))
        if _internal_call:
            self.networks.save_average(folder)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if not self.sharded:
            return super()._save_optimizer_and_scheduler(output_dir)
        # By names of parameters, so that the number of processes does not matter.
        state = get_optimizer_state_dict(self.model, self.optimizer.optimizer)  # the one in accelerate's
        sharding.save(Path(output_dir) / sharding.OPTIMIZER, state)
        if self.args.should_save:
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / SCHEDULER_NAME)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if not self.sharded:
            return super()._load_from_checkpoint(resume_from_checkpoint, model)
        sharding.release(self.model)
        sharding.load(Path(resume_from_checkpoint) / sharding.MODEL, sharding.weights(self.model))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            self.networks.load_average(Path(checkpoint))
        if not self.sharded or checkpoint is None:
            return super()._load_optimizer_and_scheduler(checkpoint)
        folder = Path(checkpoint)
        if (folder / sharding.OPTIMIZER).is_dir():  # not there with save_only_model
            state = get_optimizer_state_dict(self.model, self.optimizer.optimizer)
            sharding.load(folder / sharding.OPTIMIZER, state)
            set_optimizer_state_dict(self.model, self.optimizer.optimizer, state)
            self.lr_scheduler.load_state_dict(torch.load(folder / SCHEDULER_NAME, weights_only=True))

    def _load_best_model(self) -> None:
        if not self.sharded:
            return super()._load_best_model()
        self._load_from_checkpoint(str(self.state.best_model_checkpoint))
