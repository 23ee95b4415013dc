"""Trains a tiny model in every setting of SETTINGS, on however many processes it was started with.

Started by test_invariance.py, with a folder to write results to.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from torch.distributed.tensor import DTensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from ebft import EBFTTrainer
from ebft.data.packing import SequenceDataset
from ebft.runtime import processes, sharding
from tests.train.small_runs import VOCABULARY, counting_text
from tests.train.small_runs import config as settings

PER_STEP = 8

# Settings that must not depend on the number of processes. 13 training sequences leave 5 for the second step of an
# epoch: 4 processes then have 2, 2, 1 and none.
SETTINGS: dict[str, dict[str, Any]] = {
    "feature_matching": {"whitening": "both"},
    "documents": {"gamma": 0.1, "kl_weight": 0.05, "document_masks": True, "short_truths": True},
    "answers": {
        "gamma": 0.1,
        "answer_only": True,
        "feature_source": "average",
        "feature_decay": 0.5,
        # Adam's first steps are signs of gradients, which rounding flips where they are near zero: a large epsilon.
        "optim": "adamw_torch",
        "learning_rate": 1e-2,
        "adam_epsilon": 1e-2,
    },
    "answer_starts": {"anchors": "answer_start", "horizon": 5, "packing": False},
    # One step: rounding in bf16 depends on the shapes of the batch, and from the second on other tokens are drawn.
    "bf16": {"gamma": 0.1, "bf16": True, "max_steps": 1},
    "tied": {"gamma": 0.1, "gradient_checkpointing": True, "rollout_batch_size": 3},
    "lora": {"gamma": 0.1, "kl_weight": 0.05},
}
# By the number of processes: settings and micro-batches per step, the same sequences in more and smaller pieces.
RUNS = {
    1: [(name, 1) for name in SETTINGS],
    2: [("feature_matching", 4), ("documents", 2), ("answers", 1), ("bf16", 1)],
    4: [("feature_matching", 1), ("answer_starts", 1)],
}
# The same with the model sharded over the processes.
SHARDED_RUNS = {
    1: [("documents", 1)],
    2: [("documents", 2), *((name, 1) for name in SETTINGS if name not in ("feature_matching", "documents"))],
    4: [("documents", 2), ("answers", 1)],
}


SHARDED = "full_shard"


def runs(world: int) -> list[tuple[str | None, str, int]]:
    """(fsdp, setting, accumulation)"""
    return [(None, *run) for run in RUNS[world]] + [(SHARDED, *run) for run in SHARDED_RUNS[world]]


def model(tied: bool, sharded: bool) -> PreTrainedModel:
    rank = processes.rank()
    torch.manual_seed(rank)  # the first process's weights must reach the others
    sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=2)
    # Large weights: the model is sure of some tokens, so that rollouts, rewards and gradients depend on it.
    config = LlamaConfig(
        vocab_size=VOCABULARY, max_position_embeddings=64, initializer_range=0.25, tie_word_embeddings=tied, **sizes
    )
    with torch.device("meta" if sharded and rank % 2 else "cpu"):  # a sharded model needs no weights of its own there
        return LlamaForCausalLM(config)


def sequences(count: int, seed: int, packing: bool) -> SequenceDataset:
    """So many, of documents of different lengths."""
    generator = torch.Generator().manual_seed(seed)
    lengths = (20 + torch.randint(9, (2 * count,), generator=generator)).tolist()
    documents = count
    while len(dataset := counting_text(documents, seed, lengths[:documents], packing)) < count:
        documents += 1
    return dataset


def adapter() -> LoraConfig:
    return LoraConfig(r=2, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)


def train(folder: Path, setting: str, accumulation: int, world: int, fsdp: str | None = None) -> dict[str, Any]:
    sizes = {"per_device_train_batch_size": PER_STEP // accumulation // world, "per_device_eval_batch_size": 3}
    given = {"samples": 3, "gradient_accumulation_steps": accumulation, "max_grad_norm": 0.5, "fsdp": fsdp, **sizes}
    given |= {"max_steps": 3, "optim": "sgd", "learning_rate": 0.1}
    config = settings(folder, **{**given, **SETTINGS[setting]})
    train_set, held_out = (sequences(n, seed, config.packing) for n, seed in ((13, 0), (7, 1)))
    lora = adapter() if setting == "lora" else None
    trainer = EBFTTrainer(model(setting == "tied", fsdp is not None), config, train_set, held_out, peft_config=lora)
    before = trainer.evaluate()
    before_training = whole_weights(trainer.model)
    trainer.train()
    held = {
        "model": trainer.model.parameters(),
        "optimizer": [t for state in trainer.optimizer.state.values() for t in state.values() if t.dim()],
        "features": trainer.features.parameters(),
    }
    after = trainer.evaluate()
    weights = whole_weights(trainer.model)
    saved = str(folder / f"final-{setting}-{accumulation}")
    if fsdp is not None:
        trainer.save_model(saved)
    sums = on_each(torch.cat([p.flatten() for p in weights.values()]).double().sum().item(), config.device)
    return {
        "weights": weights,
        "before": before_training,
        "log": [entry for entry in trainer.state.log_history if "reward" in entry],
        "evaluations": [before, after],
        "same_on_all": len(set(sums)) == 1,
        "processes": len(sums),
        "saved": saved,
        "held": {name: on_each(elements(tensors), config.device) for name, tensors in held.items()},
    }


def elements(tensors: Iterable[torch.Tensor]) -> int:
    """How many of these tensors this process holds."""
    return sum((t.to_local() if isinstance(t, DTensor) else t).numel() for t in tensors)


def on_each(value: float, device: torch.device) -> list[float]:
    """What each process has for `value`."""
    return processes.join_rows({"": torch.tensor([value]).double()}, device)[""].tolist()


def whole_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: sharding.whole(p.detach()).clone() for name, p in model.named_parameters() if p.requires_grad}


def main(folder: Path) -> None:
    world = int(os.environ.get("WORLD_SIZE", 1))
    for fsdp, setting, accumulation in runs(world):
        found = train(folder / "run", setting, accumulation, world, fsdp)
        if processes.rank() == 0:
            torch.save(found, folder / f"{fsdp}-{setting}-{accumulation}.pt")
    processes.leave()
