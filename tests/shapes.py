"""The shapes of public models, from their config.json: enough for `ebft plan`, no weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from transformers import LlamaConfig, PreTrainedConfig, Qwen2Config

SHAPES: dict[str, Callable[[], PreTrainedConfig]] = {
    "Qwen/Qwen2.5-1.5B": lambda: Qwen2Config(
        vocab_size=151936, hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12,
        num_key_value_heads=2, tie_word_embeddings=True,
    ),
    "Qwen/Qwen2.5-7B": lambda: Qwen2Config(
        vocab_size=152064, hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28,
        num_key_value_heads=4,
    ),
    "meta-llama/Llama-3.1-70B": lambda: LlamaConfig(
        vocab_size=128256, hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64,
        num_key_value_heads=8,
    ),
}  # fmt: skip


def shape_folder(name: str, folder: Path) -> Path:
    """A model folder that holds nothing but config.json."""
    SHAPES[name]().save_pretrained(folder)
    return folder
