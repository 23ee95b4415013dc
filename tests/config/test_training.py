"""The settings of training: what is refused before anything starts, and what making them leaves alone."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from ebft import EBFTConfig
from ebft.config.data import ModelConfig
from ebft.config.method import MethodConfig
from ebft.config.training import RLVRSettings
from ebft.errors import ConfigError
from ebft.runtime import processes

ON_CPU: dict[str, Any] = {"output_dir": "o", "use_cpu": True}


def train(**settings: Any) -> EBFTConfig:
    return EBFTConfig(**ON_CPU, **settings)


@pytest.mark.parametrize(
    ("made", "settings", "words"),
    [
        (MethodConfig, {"whitening": "bth"}, "whitening='bth' is not one of none, .*; did you mean 'both'"),
        (MethodConfig, {"context_length": 5}, "does not fit in context_length=5; use a longer context"),
        (MethodConfig, {"samples": 1}, "samples=1 leaves no unbiased feature-matching loss"),
        (MethodConfig, {"short_truths": True}, "short_truths=true needs document_masks=true"),
        (MethodConfig, {"feature_model": "m", "feature_source": "random"}, "exclude each other"),
        (ModelConfig, {"lora": True, "peft": {"r": 4}}, "exclude each other"),
        (train, {"max_steps": 0}, "-1 for num_train_epochs"),
        (train, {"early_stopping_patience": 2}, "without evaluations is not supported; set eval_strategy"),
        (train, {"fp16": True}, "fp16=true is not supported; .*; use bf16=true, or float32"),
        (train, {"deepspeed": "zero.json"}, "deepspeed is not supported; use fsdp=full_shard"),
        (train, {"metric_for_best_model": "eval_loss"}, "is no metric of validation; there is cross_entropy, .*"),
        (train, {"fsdp": True, "fsdp_config": {"version": 1}}, "use fsdp=full_shard or shard_grad_op alone"),
        (train, {"gradient_accumulation_steps": 0}, "gradient_accumulation_steps=0 must be at least 1"),
        (RLVRSettings, {"output_dir": "o", "generations": 1}, "generations=1 must be at least 2"),
        (train, {"fsdp": True, "eval_tasks": ["humaneval"]}, "with eval_tasks is not supported"),
    ],
)
def test_values_that_would_go_wrong_late_or_unseen(made: Any, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        made(**settings)


def test_what_asks_for_a_sharded_model() -> None:
    found = [train(fsdp=fsdp) for fsdp in ("full_shard", True, "shard_grad_op", None)]
    assert [each.sharding for each in found] == ["full_shard", "full_shard", "shard_grad_op", None]
    assert {each.fsdp_plugin_args for each in found} == {None}, "transformers must not shard it a second time"


def test_accelerate_launch_does_not_wrap_the_model_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with pytest.raises(ConfigError, match="deepspeed is not supported"):
        train()
    monkeypatch.delenv("ACCELERATE_USE_DEEPSPEED")
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ConfigError, match="does not shard the model here; set fsdp=full_shard"):
        processes.start(train())
    with pytest.raises(ConfigError, match="report_to='tensorbord' is not known or not installed"):
        processes.start(train(report_to="tensorbord"))
    config = train()
    monkeypatch.setattr(EBFTConfig, "n_gpu", 4)
    with pytest.raises(ConfigError, match="one process sees 4 GPUs; start one process per GPU"):
        processes.start(config)


def test_nothing_is_joined_or_set_up_before_a_run_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in launched.items():
        monkeypatch.setenv(name, value)
    before = dict(os.environ)
    found = train()
    assert dict(os.environ) == before
    assert not torch.distributed.is_initialized()
    assert (found.world_size, found.process_index, found.local_process_index) == (4, 1, 1)
    assert found.rows_per_step == 4 * 16
    assert "_setup_devices" not in vars(found), "asking for counts sets nothing up either"


@pytest.mark.parametrize(
    ("metric", "larger"),
    [("eval_cross_entropy", False), ("whitened_proxy", True), ("mbpp_pass@1", True), ("calibration_cfm_at_8", False)],
)
def test_what_is_best(metric: str, larger: bool) -> None:
    assert train(metric_for_best_model=metric, eval_tasks=["mbpp", "calibration"]).greater_is_better == larger
