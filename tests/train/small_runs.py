"""Small models, texts and settings for the tests of the trainer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from ebft import EBFTConfig
from ebft.data.packing import DocumentIndex, SequenceDataset, TokenStore
from ebft.data.row_format import Document

T, VOCABULARY = 32, 24


def small_model(seed: int = 0) -> PreTrainedModel:
    torch.manual_seed(seed)
    sizes = dict(hidden_size=48, intermediate_size=96, num_hidden_layers=4, num_attention_heads=2)
    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=64, **sizes))


def counting_text(
    documents: int = 64, seed: int = 0, lengths: Sequence[int] | None = None, packing: bool = True
) -> SequenceDataset:
    """Documents that count up by a step of their own, modulo the vocabulary: easy to learn, not at once."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for length in lengths or [40] * documents:
        start, step = torch.randint(VOCABULARY, (2,), generator=generator).tolist()
        tokens = [(start + i * (1 + step % 3)) % VOCABULARY for i in range(length)]
        made.append(Document(tokens, [i >= 10 for i in range(length)]))
    return SequenceDataset(DocumentIndex.of(TokenStore.from_documents(made)), T, packing)


def config(output: Path, **changes: Any) -> EBFTConfig:
    settings: dict[str, Any] = dict(context_length=T, answer_only=False, horizon=4, stride=4, samples=4, max_steps=4)
    settings |= dict(output_dir=str(output), use_cpu=True, per_device_train_batch_size=8, learning_rate=1e-3)
    settings |= dict(warmup_steps=0, logging_steps=1, save_strategy="no", disable_tqdm=True, samples_every=0)
    return EBFTConfig(**{**settings, **changes})


def weights(model: Any) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}
