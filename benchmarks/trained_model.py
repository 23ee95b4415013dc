"""What both implementations train: the same random weights, their optimiser, and the same random contexts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from ebft.data.packing import DocumentIndex, SequenceDataset, tokenize_rows
from ebft.model.backbone import WorkingCopy, copy_in_dtype
from shapes import SIZES
from step_settings import SEED, Settings

LORA_RANK = 16


def build_model(settings: Settings) -> PreTrainedModel:
    """The same float32 weights at every call: the ones that are trained."""
    if settings.model is not None:
        options: Any = {"dtype": torch.float32, "attn_implementation": "sdpa"}
        real: Any = AutoModelForCausalLM.from_pretrained(settings.model, **options)
        return real.to(settings.device)
    torch.manual_seed(SEED)
    with torch.device(settings.device):
        return AutoModelForCausalLM.from_config(
            SIZES[settings.size].config(), dtype=torch.float32, attn_implementation="sdpa"
        )


def add_adapter(model: Any) -> Any:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=LORA_RANK, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    return get_peft_model(model, config)


def contexts(settings: Settings) -> Tensor:
    if settings.text is not None:
        of_text = text_contexts(settings.text, settings.model, settings.sequences, settings.context_length)
        return of_text.to(settings.device)
    generator = torch.Generator().manual_seed(SEED)
    shape = (settings.sequences, settings.context_length)
    return torch.randint(SIZES[settings.size].vocabulary, shape, generator=generator).to(settings.device)


def text_contexts(text: str | Path, model: str | None, sequences: int, context_length: int) -> Tensor:
    """The first sequences of a file of rows, packed as in training with the model's tokens."""
    rows = [json.loads(line) for line in Path(text).read_text().splitlines()]
    store = tokenize_rows(rows, AutoTokenizer.from_pretrained(model))
    dataset = SequenceDataset(DocumentIndex.of(store), context_length)
    return torch.stack([dataset[row]["input_ids"] for row in range(sequences)])


class Training:
    """The float32 weights, the copy to compute with if that is in bf16, and the optimiser."""

    def __init__(self, settings: Settings) -> None:
        self.trained: Any = build_model(settings)
        self.model: Any = self.trained
        self.working: WorkingCopy | None = None
        if settings.lora:
            copied, _ = copy_in_dtype(self.trained, settings.torch_dtype)
            self.trained = self.model = add_adapter(copied)
        elif settings.dtype != "float32":
            self.working = WorkingCopy(self.trained, settings.torch_dtype)
            self.model = self.working.model
        if settings.gradient_checkpointing:
            self.model.gradient_checkpointing_enable()
            self.model.train()
        weights = [p for p in self.trained.parameters() if p.requires_grad]
        if settings.optimizer == "adafactor":
            from transformers import Adafactor

            self.optimizer: Any = Adafactor(weights, lr=1e-6, relative_step=False, scale_parameter=False)
        else:
            fused = settings.device == "cuda"
            self.optimizer = torch.optim.AdamW(weights, lr=1e-6, betas=(0.9, 0.95), weight_decay=0.0, fused=fused)

    def step(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.trained.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.working is not None:
            self.working.refresh()
