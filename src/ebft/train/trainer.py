"""EBFTTrainer: transformers' Trainer with one EBFT iteration per optimiser step.

The trainer collects the micro-batches of an accumulation window (`get_batch_samples`), makes the rollouts, features,
rewards and advantages for all of them at once (`iteration.prepare_window`), and then takes the gradient of the loss
micro-batch by micro-batch (`compute_loss`). Both sums of the loss are divided by the window's token counts, so that k
micro-batches give the gradient of one batch of k times the size. Every rollout is seeded by (run, step, sequence).

With several processes the window is spread over them, and counts, metrics and gradients are added up (`processes`): k
processes do the same steps as one with the same number of sequences per step. With `fsdp` each of them holds only a
part of the model, of the frozen networks and of the optimiser's state (`model.sharding`); to transformers and
accelerate it still looks like plain data parallelism.
"""

from __future__ import annotations

import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback, set_seed
from transformers.integrations import TensorBoardCallback

from ebft import adapters, validation
from ebft.config.training import EBFTConfig
from ebft.data.formats import check_tokenizer
from ebft.data.packing import DocumentIndex, SequenceDataset, collate
from ebft.data.store import tokenize_rows
from ebft.errors import ConfigError
from ebft.iteration import Window, prepare_window
from ebft.method.cross_entropy import Reference
from ebft.method.losses import ebft_loss
from ebft.model.attention import resolve_backend
from ebft.model.backbone import (
    compile_layers,
    decoder_of,
    embedding_size,
    output_head,
    packed_hidden_states,
    prepare_model,
)
from ebft.model.working_copy import WorkingCopy, copy_in_dtype
from ebft.runtime import processes, sharding
from ebft.runtime.timing import Clock, Watch
from ebft.train import callbacks as standard_callbacks
from ebft.train.ruler import Passes, Spent, frozen_network, wide
from ebft.train.sequences import check_sequences, end_token_ids, pad_token_id
from ebft.train.sharded_trainer import ShardedTrainer


class TrainingDiverged(RuntimeError):
    """Loss or reward left the realm of sense; the message says what to try."""


class EBFTTrainer(ShardedTrainer):
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

    args: EBFTConfig
    control: Any

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
        if args is None:
            args = EBFTConfig(output_dir="ebft-output")
        if args.n_gpu > 1:
            raise ConfigError(
                f"one process sees {args.n_gpu} GPUs; start one process per GPU (`ebft train --launch {args.n_gpu}`, "
                "torchrun, accelerate launch), or show it only one (CUDA_VISIBLE_DEVICES=0)"
            )
        if isinstance(model, str):
            processing_class = processing_class or AutoTokenizer.from_pretrained(model)
            model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        if processing_class is not None:
            check_tokenizer(processing_class, embedding_size(model))
        if peft_config is not None:
            set_seed(args.seed)  # the Trainer does so only later; the adapter's random weights belong to the run
            model = adapters.add(model, peft_config)
        if args.disable_dropout:
            disable_dropout(model)
        backend: Any = args.attention_backend
        resolve_backend(backend, args.device)  # an error here costs nothing yet
        self.pad_token_id = pad_token_id(processing_class)
        self.end_token_ids = end_token_ids(processing_class, args.document_masks, args.device)
        self.clock, self.watch, self.spent = Clock(args.device), Watch(), Spent()
        self._observed: dict[str, list[Tensor | float]] = defaultdict(list)
        self._window: Window | None = None
        self.evaluated: tuple[int, dict[str, float]] = (-1, {})  # the last evaluation, and after which step
        self.sharded = args.sharding is not None
        if self.sharded:
            self._share_out(model, args, processing_class)  # before it is put on a device as a whole
        super().__init__(
            model=model,
            args=args,
            data_collator=collate,
            train_dataset=self._sequences(train_dataset, args, processing_class),
            eval_dataset=self._sequences(eval_dataset, args, processing_class),
            processing_class=processing_class,
            callbacks=[*standard_callbacks.standard(self, args), *(callbacks or [])],
            **kwargs,
        )
        if self.sharded:
            self.accelerator.prepare_model = _as_it_is
            self.accelerator.clip_grad_norm_ = sharding.clip_gradients
        elif args.world_size > 1:
            # No wrapper: `processes` says why. The model is still given to accelerate, which puts it on its device.
            self.accelerator.prepare_model = partial(self.accelerator.prepare_model, evaluation_mode=True)
            processes.copy_from_first(self.model)
        for callback in self.callback_handler.callbacks:
            # An evaluation before training would otherwise open the log in the working directory.
            if isinstance(callback, TensorBoardCallback) and callback.logging_dir is None:
                callback.logging_dir = os.path.join(str(args.output_dir), "runs")
        # compute_loss divides by the counts of the whole window: the Trainer must not divide by the accumulation again.
        self.model_accepts_loss_kwargs = True
        if not self.sharded:
            self._make_networks(self.model, args, self.processing_class)
        compiling = args.compile_layers
        if compiling is None:
            compiling = args.torch_compile or args.device.type == "cuda"
        if compiling:
            compile_layers(decoder_of(self.model if self.working is None else self.working.model))
            self.features.compile_layers()

    def _make_networks(self, model: Any, args: EBFTConfig, tokenizer: Any) -> None:
        """Everything that is made from the model as it is at the start."""
        prepare_model(model)
        self.working = self._working_copy(model, args)
        self.features = frozen_network(model, args, tokenizer)
        self.passes = Passes(model)
        self.reference = self._reference_model(model, args)

    def _share_out(self, model: Any, args: EBFTConfig, tokenizer: Any) -> None:
        """Each process keeps its part of the model and of the frozen networks, which are made first: there is no
        copying shards."""
        if getattr(model, "is_quantized", False):
            raise ConfigError("fsdp with a quantised model is not supported; load it in float32 or bfloat16")
        processes.join_alone(args.device)
        if not processes.same_on_all([(name, p.shape, p.dtype) for name, p in model.named_parameters()]):
            raise ConfigError(
                "the processes have loaded different models, which cannot be shared out; load the same one"
            )
        processes.all_or_none(lambda: prepare_model(model))  # not all may have the weights to look at
        self._make_networks(model, args, tokenizer)
        assert args.sharding is not None
        group = (args.device, processes.count())
        computing = torch.bfloat16 if args.bf16 and not hasattr(model, "disable_adapter") else None
        sharding.shard(model, *group, computing, args.sharding.reshard_after_forward)
        if self.features.source == "adapter_off":
            sharding.call_through(self.features._network[0], model)
        else:
            sharding.shard_network(self.features._network[0], *group)
        if self.reference is not None:
            sharding.shard(self.reference, *group, None, reshard=True)

    # ---- which weights compute -----------------------------------------------------------------------------------

    def _working_copy(self, model: Any, args: EBFTConfig) -> WorkingCopy | None:
        """With bf16, full fine-tuning computes on a bf16 copy of the float32 weights; shards are gathered in bf16."""
        if not args.bf16:
            return None
        if hasattr(model, "disable_adapter"):
            # Under an adapter the base model does not train: it needs no float32 weights. Adapters are small: autocast.
            for parameter in model.parameters():
                if not parameter.requires_grad and parameter.is_floating_point():  # 4 bits stay 4 bits
                    parameter.data = parameter.data.to(torch.bfloat16)
            return None
        if self.sharded or next(model.parameters()).dtype == torch.bfloat16:
            return None
        working = WorkingCopy(model)
        if args.gradient_checkpointing:
            working.model.gradient_checkpointing_enable(args.gradient_checkpointing_kwargs)
        return working

    def computing(self) -> Any:
        """The model to compute with, up to date with the one that is trained."""
        if self.working is None:
            return self.model
        self.working.refresh()
        return self.working.model

    def compute_loss_context_manager(self) -> Any:
        # The working copy is in bf16 as a whole, and gathered weights are; autocast would only lift parts to float32.
        in_bf16 = self.working is not None or (self.sharded and not hasattr(self.model, "disable_adapter"))
        return nullcontext() if in_bf16 else super().compute_loss_context_manager()

    # ---- one iteration -----------------------------------------------------------------------------------------

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        if self.state.global_step >= self.state.max_steps:
            # Resumed from the last step's checkpoint: the Trainer would take one more step before it looks.
            self.control.should_training_stop = True
            return [], None
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        if not batches:
            return batches, None
        with self.compute_loss_context_manager():
            window = prepare_window(
                self.computing(),
                self.features,
                batches,
                self.args,
                self.state.global_step,
                self.end_token_ids,
                self.clock,
            )
        self.watch.look()
        self.watch.add(window.sequences, self._count_tokens)
        self.watch.add(torch.as_tensor(window.metrics["reward"]), self._reward_check(self.state.global_step + 1))
        for name, value in window.metrics.items():
            self._observed[name].append(value)
        self._window = window
        self._count(window)
        return window.micro_batches, window.generated_tokens

    def _count(self, window: Window) -> None:
        """One pass over everything to roll out, one of the frozen network, the update, one more for the KL term."""
        passes = self.passes
        packed = wide(torch.as_tensor(window.metrics["ebft/packed_tokens"]))
        generated, text = wide(window.generated_tokens), wide(window.tokens)
        rows = generated + text if self.args.gamma else generated  # with logits
        flops = passes.over(packed, generated) + packed * passes.features(self.features)
        flops = flops + passes.over(packed, rows) * (passes.update + bool(self.args.kl_weight))
        self.spent.add(tokens=window.tokens, generated_tokens=window.generated_tokens, flops=flops)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        with self.clock.phase("update"):
            loss = super().training_step(model, inputs, num_items_in_batch)
        if self.accelerator.sync_gradients:  # the window's last micro-batch
            self._finish_window()
        # What is returned is only logged, as the mean over processes; these are parts of a sum.
        return loss * self.args.world_size

    def _finish_window(self) -> None:
        """Add up what all micro-batches of all processes found: the gradients, and what is logged about the loss."""
        if self.args.world_size > 1 and not self.sharded:  # shards are summed by the backward pass
            with self.clock.phase("exchange"):
                processes.sum_gradients(self.model)
        if self._window is None or not self._window.parts:
            return
        totals = processes.sum_over_processes(self._window.parts)
        # The same number in all processes, so that all of them stop or none does.
        self.watch.add(totals.pop("loss"), self._loss_check(self.state.global_step + 1))
        for name, value in totals.items():
            self._observed[name].append(value)
        self._window.parts = {}

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        packed_ids, layout = inputs["input_ids"], inputs["layout"]
        backend: Any = self.args.attention_backend
        if self.working is not None:
            model = self.working.model.train(model.training)
        hidden = packed_hidden_states(model, packed_ids, layout, backend)
        reference = None
        if self.args.kl_weight:
            with torch.no_grad(), self._reference_context():
                frozen = self.reference if self.reference is not None else model
                states = packed_hidden_states(frozen, packed_ids, layout, backend)
                reference = Reference(states, output_head(frozen))
        terms = ebft_loss(
            hidden,
            output_head(model),
            packed_ids,
            layout,
            inputs["advantages"],
            self.args.temperature,
            self.args.gamma,
            inputs["completion_lengths"],
            reference,
            self.args.kl_weight,
            generated_tokens=inputs["generated_tokens"],
            truth_tokens=inputs["truth_tokens"],
        )
        sharding.release(self.reference)
        # These are this micro-batch's parts of sums over the window: added up, not averaged.
        self._add("loss", terms.loss)
        self._add("ebft/policy_loss", terms.policy)
        self._add("entropy", terms.entropy)
        if self.args.gamma:
            self._add("ebft/cross_entropy", terms.cross_entropy)
        if terms.kl is not None:
            self._add("kl", terms.kl)
        return (terms.loss, terms) if return_outputs else terms.loss

    def _add(self, name: str, value: Tensor) -> None:
        """Add to what the current window has so far."""
        if self._window is not None:
            parts = self._window.parts
            parts[name] = parts[name] + value.detach() if name in parts else value.detach()

    def _count_tokens(self, sequences: float) -> None:
        self.state.num_input_tokens_seen += int(sequences) * self.args.context_length

    def _loss_check(self, step: int) -> Callable[[float], None]:
        def check(loss: float) -> None:
            if not math.isfinite(loss):
                raise TrainingDiverged(
                    f"the loss is {loss} at step {step}; try a lower learning_rate, a gamma above 0, or "
                    "whitening=reference, and look at the last samples"
                )

        return check

    def _reward_check(self, step: int) -> Callable[[float], None]:
        def check(reward: float) -> None:
            if not abs(reward) <= self.args.max_reward:  # also true for NaN
                raise TrainingDiverged(
                    f"the mean reward is {reward:.3g} at step {step}, beyond max_reward={self.args.max_reward:g}; try "
                    "a lower learning_rate or whitening=reference, or raise max_reward"
                )

        return check

    # ---- what is logged ----------------------------------------------------------------------------------------

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        logs.update(self.spent.totals())
        if "loss" in logs and self._observed:
            self.watch.look(wait=True)
            for name, values in self._observed.items():
                logs[name] = float(sum(float(v) for v in values) / len(values))
            steps = max(len(self._observed["reward"]), 1)
            seconds = {f"ebft/seconds_{name}": total / steps for name, total in self.clock.read().items()}
            logs.update(seconds)
            logs["step_time"] = sum(seconds.values())
            if logs["step_time"]:
                logs["ebft/tokens_per_second"] = logs["ebft/packed_tokens"] / logs["step_time"]
            if torch.cuda.is_available():
                logs["ebft/peak_memory_gib"] = torch.cuda.max_memory_allocated() / 2**30
            logs["num_tokens"] = self.state.num_input_tokens_seen
            self._observed.clear()
        super().log(logs, start_time)

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Cross-entropy over all and answer tokens, feature-matching loss and whitened proxy, with standard errors.

        Rollouts are drawn with `eval_seed`, so that evaluations compare, and training is not disturbed.
        """
        given: Any = self._sequences(eval_dataset, self.args, self.processing_class)
        dataset: Any = given if given is not None else self.eval_dataset
        if dataset is None:
            raise ValueError("evaluation needs an eval_dataset")
        start = time.perf_counter()
        loader = processes.evaluation_loader(self.args, dataset)
        with torch.no_grad(), self.compute_loss_context_manager():
            found = validation.evaluate(
                self.computing(), self.features, loader, self.args, self.end_token_ids, self.args.device, len(dataset)
            )
        sharding.release(self.model)
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in found.items()}
        metrics[f"{metric_key_prefix}_runtime"] = time.perf_counter() - start
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        self.evaluated = (self.state.global_step, metrics)
        return metrics

    def get_train_dataloader(self) -> DataLoader:
        if self.args.world_size == 1 or self.train_dataset is None:
            return super().get_train_dataloader()
        return processes.train_loader(self.args, self.train_dataset)

    # ---- building ----------------------------------------------------------------------------------------------

    def _sequences(self, dataset: Any, args: EBFTConfig, tokenizer: Any) -> SequenceDataset | None:
        if dataset is None or isinstance(dataset, SequenceDataset):
            found = dataset
        else:
            if tokenizer is None:
                raise ConfigError("rows of text need a tokenizer; pass processing_class=")
            store = tokenize_rows(dataset, tokenizer)
            found = SequenceDataset(DocumentIndex.of(store), args.context_length, args.packing, self.pad_token_id)
        if found is not None:
            check_sequences(found, args)
        return found

    def _reference_model(self, model: Any, args: EBFTConfig) -> nn.Module | None:
        """The frozen q of the KL term; with an adapter, the base model serves and nothing is copied."""
        if not args.kl_weight or hasattr(model, "disable_adapter"):
            return None
        return copy_in_dtype(model, torch.bfloat16 if args.bf16 else None)[0].requires_grad_(False).eval()

    def _reference_context(self) -> Any:
        return self.model.disable_adapter() if self.reference is None else nullcontext()


def _as_it_is(model: Any, *args: Any, **kwargs: Any) -> Any:
    """For accelerate: a sharded model is on its device, and wants neither a wrapper nor autocast."""
    return model


def disable_dropout(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0  # type: ignore[assignment]
