"""The networks of a run: what computes, the frozen feature network, the reference of the KL term."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM

from ebft import EBFTTrainer
from ebft.errors import ConfigError
from tests.models import tiny_model
from tests.train.small_runs import VOCABULARY, config, counting_text, small_model, weights


def test_a_quantised_model_is_not_sharded(tmp_path: Path) -> None:
    model: Any = tiny_model("llama")
    model.is_quantized = True
    with pytest.raises(ConfigError, match="fsdp with a quantised model is not supported; load it in float32"):
        EBFTTrainer(model, config(tmp_path, fsdp="full_shard"))


def test_lora_uses_the_base_model_as_frozen_network_and_saves_an_adapter(tmp_path: Path) -> None:
    model = small_model()
    start = weights(model)
    adapter = LoraConfig(r=4, target_modules=["q_proj", "v_proj", "up_proj"], task_type="CAUSAL_LM")
    args = config(tmp_path, kl_weight=0.01, learning_rate=1e-2)
    trainer = EBFTTrainer(model, args, counting_text(), counting_text(documents=8, seed=1), peft_config=adapter)
    assert trainer.features.source == "adapter_off"
    assert trainer.networks.reference is None
    trainer.train()
    assert all(
        torch.equal(start[n.replace(".base_layer", "")], p) for n, p in model.named_parameters() if "lora" not in n
    )
    trainer.save_model(str(tmp_path / "adapter"))
    assert (tmp_path / "adapter" / "adapter_model.safetensors").exists()


def test_dropout_is_turned_off(tmp_path: Path) -> None:
    model = tiny_model("gpt2", vocab_size=VOCABULARY)
    EBFTTrainer(model, config(tmp_path, max_steps=1), counting_text()).train()
    assert all(m.p == 0 for m in model.modules() if isinstance(m, torch.nn.Dropout))


def test_bf16_computes_on_a_copy_and_trains_float32_weights(tmp_path: Path) -> None:
    """Steps far below the resolution of bf16 are not lost, and what is saved is what is trained."""
    args = config(tmp_path, bf16=True, gamma=0.1, learning_rate=1e-6, max_steps=6, gradient_accumulation_steps=2)
    trainer = EBFTTrainer(small_model(), args, counting_text(), counting_text(documents=8, seed=1))
    assert trainer.networks.working is not None
    start = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    trainer.train()
    assert {p.dtype for p in trainer.model.parameters()} == {torch.float32}
    assert {p.dtype for p in trainer.networks.working.model.parameters()} == {torch.bfloat16}
    assert all(not torch.equal(start[name], p) for name, p in trainer.model.named_parameters())
    trainer.save_model(str(tmp_path / "saved"))
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype=torch.float32)
    for name, p in trainer.model.named_parameters():
        assert torch.equal(saved.get_parameter(name), p), name


def test_bf16_and_float32_take_nearly_the_same_steps(tmp_path: Path) -> None:
    """The same data from the same weights: the gradient's direction agrees up to rounding and other samples."""
    gradients = []
    for bf16 in (False, True):
        args = config(tmp_path / str(bf16), bf16=bf16, gamma=1.0, whitening="none", max_steps=1, max_grad_norm=0.0)
        trainer = EBFTTrainer(small_model(), args, counting_text())
        trainer.create_optimizer_and_scheduler(1)
        trainer.state.max_steps = 1
        batch = next(iter(trainer.get_train_dataloader()))
        window, count = trainer.get_batch_samples(iter([batch]), 1, args.device)
        trainer.current_gradient_accumulation_steps = 1
        trainer.training_step(trainer.model, window[0], count)
        gradients.append(torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None]))
    assert float(torch.nn.functional.cosine_similarity(*gradients, dim=0)) > 0.98
    assert float(gradients[1].norm() / gradients[0].norm()) == pytest.approx(1, abs=0.1)
