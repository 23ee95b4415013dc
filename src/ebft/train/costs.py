"""What a run has cost so far in seconds, tokens and FLOPs: runs compare at equal data or at equal compute."""

from __future__ import annotations

import time
from typing import TypeVar

import torch
from torch import Tensor, nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ebft.model.backbone import (
    base_model,
    decoder_layers,
    decoder_of,
    idle_parameters,
    input_embeddings,
    text_config,
)
from ebft.model.features import FeatureNetwork
from ebft.runtime.files import read_json, write_json
from ebft.train.checkpoints import folder_at

COSTS_FILE = "spent.json"  # in every checkpoint
Count = TypeVar("Count", float, Tensor)


class FlopCounter:
    """FLOPs of a pass over one token: 2 for every parameter that is multiplied with, by the usual count. Of a mixture
    of experts, those that a token goes to.

    `body` is the decoder's part, `head` that of one row of logits: EBFT and GRPO need logits for some tokens only.
    Not counted: padding, attention's products between tokens, the optimiser, evaluation, and what gradient
    checkpointing computes again.
    """

    def __init__(self, model: nn.Module) -> None:
        base = base_model(model)
        layers = decoder_layers(decoder_of(base))[1]
        idle = idle_parameters(layers, text_config(base))
        embeddings, head = input_embeddings(base), base.get_output_embeddings()
        # Looking up an embedding multiplies nothing; a head that shares the matrix does.
        looked_up = 0 if getattr(head, "weight", None) is embeddings else embeddings.numel()
        self.head = 2.0 * sum(p.numel() for p in head.parameters())
        self.body = 2.0 * (_count(model) - idle - looked_up) - self.head
        # Backward costs as much for the inputs and once more for the weights; a frozen base has no second part.
        frozen = any(not p.requires_grad for n, p in model.named_parameters() if "lora_" not in n)
        self.update = 2.0 if frozen else 3.0  # in forward passes
        self._per_layer = 2.0 * (_count(layers) - idle) / len(layers)

    def over(self, tokens: Count, logits: Count) -> Count:
        """FLOPs of a forward pass over so many tokens, with so many rows of logits."""
        return tokens * self.body + logits * self.head

    def of_features(self, network: FeatureNetwork) -> float:
        """FLOPs of the frozen network for one token."""
        if network.source in ("copy", "adapter_off", "average", "random"):
            return self._per_layer * max(network.taps)
        layers = decoder_layers(network.decoder)[1]
        return 2.0 * (_count(layers) - idle_parameters(layers, text_config(network.decoder)))


def _count(module: nn.Module) -> int:
    """Parameters; of a matrix in 4 bits, two stand in every byte."""
    return sum(p.numel() * (2 if hasattr(p, "quant_state") else 1) for p in module.parameters())


def wide(count: Tensor) -> Tensor:
    """Counts grow beyond what float32 can count; Apple's GPUs have nothing wider."""
    return count.float() if count.device.type == "mps" else count.double()


class CostTracker(TrainerCallback):
    """Seconds, tokens and FLOPs of training so far, evaluation and saving left out. Continues after a resume."""

    def __init__(self) -> None:
        self._counts: dict[str, float | Tensor] = dict.fromkeys(("seconds", "tokens", "generated_tokens", "flops"), 0.0)
        self._mark = 0.0

    def add(self, **counts: float | Tensor) -> None:
        """Numbers, or tensors that may still be under way on a GPU: nothing waits for them here."""
        for name, value in counts.items():
            self._counts[name] = self._counts[name] + (wide(value.detach()) if isinstance(value, Tensor) else value)

    def totals(self) -> dict[str, float]:
        return {f"spent/{name}": float(value) for name, value in self._counts.items()}

    def pause(self) -> None:
        """What came since the end of the step was not training."""
        self._mark = time.perf_counter()

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, *_: object, **__: object) -> None:
        saved = read_json(folder_at(args.output_dir, state.global_step) / COSTS_FILE)
        self._counts.update(saved or {})
        self.pause()

    def on_step_end(self, args: object, state: object, control: TrainerControl, **_: object) -> None:
        # Work that the GPU still has to do belongs to the step, not to the evaluation behind it.
        if torch.cuda.is_available() and (control.should_evaluate or control.should_save or control.should_log):
            torch.cuda.synchronize()
        self._counts["seconds"] += time.perf_counter() - self._mark
        self.pause()

    def on_evaluate(self, *_: object, **__: object) -> None:
        self.pause()

    def on_save(self, args: TrainingArguments, state: TrainerState, *_: object, **__: object) -> None:
        folder = folder_at(args.output_dir, state.global_step)
        if state.is_world_process_zero and folder.exists():
            write_json(folder / COSTS_FILE, {name: float(value) for name, value in self._counts.items()})
        self.pause()
