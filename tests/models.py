"""Tiny random models of every family that ebft names as supported."""

from __future__ import annotations

import torch
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MixtralConfig,
    OlmoeConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

VOCABULARY = 61
SIZES = dict(
    vocab_size=VOCABULARY, hidden_size=64, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=256, bos_token_id=None, eos_token_id=None, pad_token_id=None,
)  # fmt: skip

CONFIGS = {
    "llama": lambda: LlamaConfig(**SIZES),
    "qwen2": lambda: Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3": lambda: Qwen3Config(**SIZES, head_dim=16),
    # A window shorter than the contexts in the tests, so that it matters.
    "gemma3": lambda: Gemma3TextConfig(
        **SIZES, head_dim=16, sliding_window=5, layer_types=["sliding_attention", "full_attention"] * 2
    ),
    "gpt2": lambda: GPT2Config(
        vocab_size=VOCABULARY, n_embd=64, n_layer=4, n_head=4, n_positions=256, bos_token_id=None, eos_token_id=None
    ),
    "gpt_neox": lambda: GPTNeoXConfig(**{k: v for k, v in SIZES.items() if k != "num_key_value_heads"}, rotary_pct=0.5),
}
# Beyond the six: soft-caps on attention scores and on logits; experts, and a window that is only in the mask.
EXTRA_CONFIGS = {
    "gemma2": lambda: Gemma2Config(
        **SIZES, head_dim=16, sliding_window=5, attn_logit_softcapping=2.0, final_logit_softcapping=3.0
    ),
    "qwen2_moe": lambda: Qwen2MoeConfig(
        **SIZES, moe_intermediate_size=32, shared_expert_intermediate_size=32, num_experts=4, num_experts_per_tok=2,
        use_sliding_window=True, sliding_window=5, max_window_layers=4,
    ),
}  # fmt: skip
# Experts: in all layers, in some, with shared ones, and with attention whose keys and values differ in width.
_EXPERTS = dict(moe_intermediate_size=32, num_experts_per_tok=2)
MIXTURES = {
    "mixtral": lambda: MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2),
    "olmoe": lambda: OlmoeConfig(**SIZES, num_experts=4, num_experts_per_tok=2),
    "qwen2_moe_dense_first": lambda: Qwen2MoeConfig(
        **SIZES, **_EXPERTS, shared_expert_intermediate_size=40, num_experts=4, mlp_only_layers=[0]
    ),
    "qwen3_moe_every_second": lambda: Qwen3MoeConfig(
        **SIZES, **_EXPERTS, head_dim=16, num_experts=8, decoder_sparse_step=2
    ),
    "deepseek_v3": lambda: DeepseekV3Config(
        **{**SIZES, "num_key_value_heads": 4}, **_EXPERTS, n_routed_experts=4, n_shared_experts=2,
        first_k_dense_replace=1, n_group=2, topk_group=1, kv_lora_rank=16, q_lora_rank=24, qk_rope_head_dim=8,
        qk_nope_head_dim=16, v_head_dim=12,
    ),
}  # fmt: skip
FAMILIES = tuple(CONFIGS)


def tiny_model(family: str = "llama", seed: int = 0, **overrides: object) -> PreTrainedModel:
    config = {**CONFIGS, **EXTRA_CONFIGS, **MIXTURES}[family]()
    for name, value in overrides.items():
        setattr(config, name, value)
    return model_of(config, seed)


def model_of(config: PreTrainedConfig, seed: int = 0) -> PreTrainedModel:
    """Random weights large enough that attention is far from uniform."""
    torch.manual_seed(seed)
    attention = "eager" if config.model_type == "gemma2" else "sdpa"
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                parameter.mul_(6.0 if "embed" not in name and "wte" not in name else 20.0)
    return model.eval()
