"""Models that benchmarks measure: the shapes of the named ones, with random weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, Qwen2Config


@dataclass(frozen=True)
class ModelShape:
    family: type[PreTrainedConfig]
    layers: int
    width: int
    heads: int
    kv_heads: int
    ffn: int
    vocabulary: int
    tied: bool

    def config(self) -> PreTrainedConfig:
        sizes: dict[str, Any] = {
            "num_hidden_layers": self.layers,
            "hidden_size": self.width,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "intermediate_size": self.ffn,
            "vocab_size": self.vocabulary,
            "tie_word_embeddings": self.tied,
            "max_position_embeddings": 8192,
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": None,
        }
        return self.family(**sizes)

    def meta_model(self) -> Any:
        """The model without memory for its weights, to count them."""
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(self.config())


SIZES = {
    "tiny": ModelShape(LlamaConfig, 4, 64, 4, 2, 96, 512, tied=False),
    "small-cpu": ModelShape(LlamaConfig, 4, 256, 4, 2, 688, 32000, tied=False),
    "smollm2-135m": ModelShape(LlamaConfig, 30, 576, 9, 3, 1536, 49152, tied=True),
    "llama3.2-1b": ModelShape(LlamaConfig, 16, 2048, 32, 8, 8192, 128256, tied=True),
    "qwen2.5-1.5b": ModelShape(Qwen2Config, 28, 1536, 12, 2, 8960, 151936, tied=True),
}
