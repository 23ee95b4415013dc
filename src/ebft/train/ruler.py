"""One ruler for every trainer: the same validation at the same steps, and what a run has spent so far.

`Ruler` measures a model with `validation.evaluate`, which EBFTTrainer uses too: cross-entropy, feature-matching loss
against a frozen network and whitened proxy. `Spent` adds up seconds, tokens and FLOPs, so that runs can be compared at
equal data or equal compute.
"""

from __future__ import annotations

import json
import time
import zlib
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import TrainerCallback

from ebft import fetch, validation
from ebft.config.training import EBFTConfig
from ebft.data.packing import SequenceDataset, collate, to_device
from ebft.errors import ConfigError, first_line
from ebft.iteration import prepare_window
from ebft.model.backbone import (
    adapter_parameters,
    base_model,
    decoder_layers,
    decoder_of,
    evaluating,
    input_embeddings,
    prepare_model,
)
from ebft.model.features import FeatureNetwork
from ebft.model.working_copy import copy_in_dtype
from ebft.runtime import processes
from ebft.runtime.sharding import whole
from ebft.train.sequences import end_token_ids

SPENT_FILE = "spent.json"
# What must be equal for two runs' validation numbers to mean the same.
TEXT_SETTINGS = ("context_length", "document_masks", "packing")
# These change what is measured with the frozen network, and not the cross-entropies.
FEATURE_SETTINGS = (
    "horizon",
    "stride",
    "temperature",
    "anchors",
    "answer_only",
    "feature_layers",
    "feature_pooling",
    "feature_normalize",
    "eval_seed",
)
# These change the whitened proxy and the validation reward only.
PROXY_SETTINGS = ("whitening", "alpha", "samples", "eval_samples")


def frozen_network(model: Any, args: EBFTConfig, tokenizer: Any) -> FeatureNetwork:
    """The feature network that the settings ask for: another checkpoint, or made from the model as it is now."""
    common: dict[str, Any] = {
        "layers": [int(x) if float(x) > 1 else float(x) for x in args.feature_layers],
        "pooling": args.feature_pooling,
        "normalize": args.feature_normalize,
        "backend": args.attention_backend,
    }
    dtype = torch.bfloat16 if args.bf16 else None
    if args.feature_model is not None:
        try:
            return FeatureNetwork.from_pretrained(
                fetch.resolve(args.feature_model),
                like=model,
                tokenizer=tokenizer,
                model_kwargs={"dtype": dtype or torch.float32},
                **common,
            )
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"feature_model={args.feature_model!r} cannot be loaded: {first_line(error)}") from None
    source: Any = args.feature_source
    if source == "auto":
        source = "adapter_off" if hasattr(model, "disable_adapter") else "copy"
    dtype = None if source == "average" else dtype
    return FeatureNetwork(model, source=source, decay=args.feature_decay, seed=args.seed, dtype=dtype, **common)


class Ruler:
    """Measures a model on the validation sequences, against a network that is frozen now."""

    def __init__(
        self, model: Any, config: EBFTConfig, dataset: SequenceDataset, tokenizer: Any, device: torch.device
    ) -> None:
        self.config, self.dataset, self.device = config, dataset, device
        prepare_model(model)
        self.features = frozen_network(model, config, tokenizer)
        self.end_token_ids = end_token_ids(tokenizer, config.document_masks, device)

    def _computing(self, model: Any) -> Any:
        """As EBFTTrainer computes: with bf16, on a copy of the weights in bf16. An adapter's model uses autocast."""
        if not self.config.bf16 or hasattr(model, "disable_adapter"):
            return model
        return copy_in_dtype(model, torch.bfloat16)[0].requires_grad_(False)

    def _autocast(self, model: Any) -> Any:
        enabled = self.config.bf16 and hasattr(model, "disable_adapter")
        return torch.autocast(self.device.type, torch.bfloat16, enabled=enabled)

    @torch.no_grad()
    def measure(self, model: Any) -> dict[str, float]:
        """Metrics by name, with `<name>_se` beside each."""
        loader = processes.evaluation_loader(self.config, self.dataset)
        with self._autocast(model):
            computing = self._computing(model)
            return validation.evaluate(
                computing, self.features, loader, self.config, self.end_token_ids, self.device, len(self.dataset)
            )

    @torch.no_grad()
    def example(self, model: Any, step: int) -> dict[str, Tensor]:
        """Rollouts in the first validation sequence, for the table of samples."""
        batch = to_device(collate([self.dataset[0]]), self.device)
        with evaluating(model), self._autocast(model):
            computing = self._computing(model)
            return prepare_window(computing, self.features, [batch], self.config, step, self.end_token_ids).example


def identity(config: EBFTConfig, features: FeatureNetwork, dataset: SequenceDataset) -> dict[str, Any]:
    """What the validation numbers of a run depend on, beside the model; `ebft compare` looks at it."""
    settings = {name: getattr(config, name) for name in (*TEXT_SETTINGS, *FEATURE_SETTINGS, *PROXY_SETTINGS)}
    settings["eval_samples"] = settings["eval_samples"] or settings["samples"]
    tokens = 0
    for row in range(len(dataset)):
        for name in ("input_ids", "document_ids", "answer_mask"):
            tokens = zlib.crc32(dataset[row][name].numpy().tobytes(), tokens)
    return {
        **settings,
        "network": "moving average" if features.source == "average" else network_checksum(features),
        "validation": f"{tokens:08x}",
        "validation_sequences": len(dataset),
        "bf16": bool(config.bf16),
    }


def network_checksum(features: FeatureNetwork) -> str:
    """Some of every weight: enough to tell two networks apart, without reading gigabytes."""
    value, adapter = 0, adapter_parameters(features._network[0])
    for parameter in features._network[0].parameters():
        if id(parameter) in adapter:  # off when features are computed
            continue
        flat = whole(parameter.detach()).flatten()
        value = zlib.crc32(flat[:: max(1, flat.numel() // 4096)].float().cpu().numpy().tobytes(), value)
    return f"{value:08x}"


# ---- what was spent ----------------------------------------------------------------------------------------------


class Passes:
    """FLOPs of a pass over one token: 2 for every parameter that is multiplied with, by the usual count.

    `body` is the decoder's part, `head` that of one row of logits: EBFT and GRPO need logits for some tokens only.
    Not counted: padding, attention's products between tokens, the optimiser, evaluation, and what gradient
    checkpointing computes again.
    """

    def __init__(self, model: nn.Module) -> None:
        base = base_model(model)
        total = _count(model)
        embeddings = input_embeddings(base)
        head: Any = base.get_output_embeddings()
        # Looking up an embedding multiplies nothing; a head that shares the matrix does.
        looked_up = 0 if getattr(head, "weight", None) is embeddings else embeddings.numel()
        self.head = 2.0 * sum(p.numel() for p in head.parameters())
        self.body = 2.0 * (total - looked_up) - self.head
        # Backward costs as much for the inputs and once more for the weights; a frozen base has no second part.
        frozen = any(not p.requires_grad for n, p in model.named_parameters() if "lora_" not in n)
        self.update = 2.0 if frozen else 3.0  # in forward passes
        layers = decoder_layers(decoder_of(base))[1]
        self._per_layer = 2.0 * _count(layers) / len(layers)

    def over(self, tokens: Any, logits: Any) -> Any:
        """FLOPs of a forward pass over so many tokens, with so many rows of logits."""
        return tokens * self.body + logits * self.head

    def features(self, network: FeatureNetwork) -> float:
        if network.source in ("copy", "adapter_off", "average", "random"):
            return self._per_layer * max(network.taps)
        inner: Any = network._network[0]
        return 2.0 * _count(decoder_layers(inner)[1])


def _count(module: nn.Module) -> int:
    """Parameters; of a matrix in 4 bits, two stand in every byte."""
    return sum(p.numel() * (2 if hasattr(p, "quant_state") else 1) for p in module.parameters())


def wide(count: Tensor) -> Tensor:
    """Counts grow beyond what float32 can count; Apple's GPUs have nothing wider."""
    return count.float() if count.device.type == "mps" else count.double()


class Spent(TrainerCallback):
    """Seconds, tokens and FLOPs of training so far, evaluation and saving left out. Goes on after a resume."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._counts: dict[str, Any] = {"tokens": 0.0, "generated_tokens": 0.0, "flops": 0.0}
        self._mark: float | None = None

    def add(self, **counts: Any) -> None:
        """Numbers, or tensors that may still be under way on a GPU: nothing waits for them here."""
        for name, value in counts.items():
            self._counts[name] = self._counts[name] + (wide(value.detach()) if torch.is_tensor(value) else value)

    def totals(self) -> dict[str, float]:
        return {"spent/seconds": self._seconds, **{f"spent/{k}": float(v) for k, v in self._counts.items()}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        file = Path(args.output_dir) / f"checkpoint-{state.global_step}" / SPENT_FILE
        if state.global_step and file.exists():
            saved = json.loads(file.read_text())
            self._seconds = saved.pop("seconds")
            self._counts.update(saved)
        self._mark = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # Work that the GPU still has to do belongs to the step, not to the evaluation behind it.
        pause = control.should_evaluate or control.should_save or control.should_log
        if torch.cuda.is_available() and pause:
            torch.cuda.synchronize()
        self._seconds += time.perf_counter() - (self._mark or time.perf_counter())
        self._mark = time.perf_counter()

    def pause(self) -> None:
        """What came since the end of the step was not training."""
        self._mark = time.perf_counter()

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.pause()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if state.is_world_process_zero and folder.exists():
            saved = {"seconds": self._seconds, **{k: float(v) for k, v in self._counts.items()}}
            (folder / SPENT_FILE).write_text(json.dumps(saved))
        self.pause()
