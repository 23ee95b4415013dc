"""Tiny random models of every family that ebft names as supported."""

from __future__ import annotations

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
)

VOCABULARY = 61
_SIZES = dict(
    vocab_size=VOCABULARY,
    hidden_size=64,
    intermediate_size=48,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=None,
)

CONFIGS = {
    "llama": lambda: LlamaConfig(**_SIZES),
    "qwen2": lambda: Qwen2Config(**_SIZES, tie_word_embeddings=True),
    "qwen3": lambda: Qwen3Config(**_SIZES, head_dim=16),
    # A window shorter than the contexts in the tests, so that it matters.
    "gemma3": lambda: Gemma3TextConfig(
        **_SIZES, head_dim=16, sliding_window=5, layer_types=["sliding_attention", "full_attention"] * 2
    ),
    "gpt2": lambda: GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=64,
        n_layer=4,
        n_head=4,
        n_positions=256,
        bos_token_id=None,
        eos_token_id=None,
    ),
    "gpt_neox": lambda: GPTNeoXConfig(
        **{k: v for k, v in _SIZES.items() if k != "num_key_value_heads"}, rotary_pct=0.5
    ),
}
# Beyond the six: soft-caps on attention scores and on logits; experts, and a window that is only in the mask.
EXTRA_CONFIGS = {
    "gemma2": lambda: Gemma2Config(
        **_SIZES, head_dim=16, sliding_window=5, attn_logit_softcapping=2.0, final_logit_softcapping=3.0
    ),
    "qwen2_moe": lambda: Qwen2MoeConfig(
        **_SIZES,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
        num_experts=4,
        num_experts_per_tok=2,
        use_sliding_window=True,
        sliding_window=5,
        max_window_layers=4,
    ),
}
FAMILIES = tuple(CONFIGS)


def tiny_model(family: str = "llama", seed: int = 0, **overrides: object) -> PreTrainedModel:
    """Random weights large enough that attention is far from uniform."""
    torch.manual_seed(seed)
    config = {**CONFIGS, **EXTRA_CONFIGS}[family]()
    for name, value in overrides.items():
        setattr(config, name, value)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa" if family != "gemma2" else "eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                parameter.mul_(6.0 if "embed" not in name and "wte" not in name else 20.0)
    return model.eval()
