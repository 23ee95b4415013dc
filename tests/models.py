"""Tiny random models of every family that ebft names as supported."""

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

config_of = AutoConfig.for_model
VOCABULARY = 61
SIZES = dict(
    vocab_size=VOCABULARY, hidden_size=64, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=256, bos_token_id=None, eos_token_id=None, pad_token_id=None,
)  # fmt: skip
# Beside these sizes; without a `kind` the name is that of transformers. A window is shorter than the contexts in the
# tests, so that it matters.
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": dict(tie_word_embeddings=True),
    "qwen3": dict(head_dim=16),
    "gemma3": dict(kind="gemma3_text", head_dim=16, sliding_window=5)
    | dict(layer_types=["sliding_attention", "full_attention"] * 2),
    "gpt2": {},
    "gpt_neox": dict(rotary_pct=0.5),
}
# Beyond the six: soft-caps on attention scores and on logits; experts, and a window that is only in the mask.
EXTRA_CONFIGS: dict[str, dict[str, Any]] = {
    "gemma2": dict(head_dim=16, sliding_window=5, attn_logit_softcapping=2.0, final_logit_softcapping=3.0),
    "qwen2_moe": dict(
        moe_intermediate_size=32, shared_expert_intermediate_size=32, num_experts=4, num_experts_per_tok=2,
        use_sliding_window=True, sliding_window=5, max_window_layers=4,
    ),
}  # fmt: skip
# Experts: in all layers, in some, with shared ones, and with attention whose keys and values differ in width.
_EXPERTS: dict[str, Any] = dict(moe_intermediate_size=32, num_experts_per_tok=2)
_SHARED = dict(kind="qwen2_moe", shared_expert_intermediate_size=40, num_experts=4, mlp_only_layers=[0])
MIXTURES: dict[str, dict[str, Any]] = {
    "mixtral": dict(num_local_experts=4, num_experts_per_tok=2),
    "olmoe": dict(num_experts=4, num_experts_per_tok=2),
    "qwen2_moe_dense_first": _EXPERTS | _SHARED,
    "qwen3_moe_every_second": _EXPERTS | dict(kind="qwen3_moe", head_dim=16, num_experts=8, decoder_sparse_step=2),
    "deepseek_v3": _EXPERTS | dict(
        num_key_value_heads=4, n_routed_experts=4, n_shared_experts=2, first_k_dense_replace=1, n_group=2, topk_group=1,
        kv_lora_rank=16, q_lora_rank=24, qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=12,
    ),
}  # fmt: skip
FAMILIES = tuple(CONFIGS)


def tiny_model(family: str = "llama", seed: int = 0, **overrides: object) -> PreTrainedModel:
    own = {**CONFIGS, **EXTRA_CONFIGS, **MIXTURES}[family]
    lacks = {"gpt_neox": ["num_key_value_heads"], "gpt2": ["num_key_value_heads", "intermediate_size"]}.get(family, [])
    given = {name: value for name, value in {"kind": family, **SIZES, **own}.items() if name not in lacks}
    config = config_of(given.pop("kind"), **given)
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
