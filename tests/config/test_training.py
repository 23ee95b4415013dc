"""The settings of training: what is refused before anything starts, and what making them leaves alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from ebft import EBFTConfig
from ebft.config.baselines import RLVRSettings, SFTSettings
from ebft.config.data import DataConfig, ModelConfig
from ebft.config.evaluation import EvalOptions
from ebft.config.method import MethodConfig
from ebft.config.training import Sharding
from ebft.errors import ConfigError
from ebft.runtime import processes


def config(folder: Path, **settings: Any) -> EBFTConfig:
    return EBFTConfig(output_dir=str(folder), use_cpu=True, **settings)


@pytest.mark.parametrize(
    ("cls", "settings", "words"),
    [
        (MethodConfig, {"whitening": "bth"}, "whitening='bth' is not one of none, .*; did you mean 'both'"),
        (MethodConfig, {"samples": 0}, "samples=0 must be at least 1"),
        (MethodConfig, {"gamma": -0.1}, "gamma=-0.1 must be at least 0"),
        (MethodConfig, {"temperature": 0.0}, "temperature=0.0 must be above 0"),
        (MethodConfig, {"alpha": 1.5}, "alpha=1.5 at most 1"),
        (MethodConfig, {"samples": 1}, "samples=1 leaves no unbiased feature-matching loss"),
        (MethodConfig, {"horizon": 1017}, "does not fit in context_length=1024; use horizon<=1016"),
        (MethodConfig, {"short_truths": True}, "short_truths=true needs document_masks=true"),
        (MethodConfig, {"feature_model": "m", "feature_source": "random"}, "exclude each other"),
        (ModelConfig, {"lora": True, "peft": {"r": 4}}, "exclude each other"),
        (ModelConfig, {"load_in_4bit": True}, "set lora=true or peft"),
        (ModelConfig, {"model_dtype": "float31"}, "model_dtype='float31' is not one of"),
        (DataConfig, {"test_split": -1}, "test_split=-1 must be at least 0"),
        (DataConfig, {"limit_documents": 0}, "limit_documents=0 must be at least 1"),
        (DataConfig, {"prompt_template": "Q: question"}, "names no column"),
    ],
)
def test_values_that_would_go_wrong_late_or_unseen(cls: type, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        cls(**settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"whitening": "bth"}, "did you mean 'both'"),
        ({"learning_rate": -1.0}, "learning_rate=-1.0 must be at least 0"),
        ({"per_device_train_batch_size": 0}, "must be at least 1"),
        ({"max_steps": 0}, "-1 for num_train_epochs"),
        ({"eval_tasks": ["humanevl"]}, "did you mean 'humaneval'"),
        ({"early_stopping_patience": 2}, "needs evaluations"),
        ({"fp16": True}, "fp16=true is not supported: .*; use bf16=true, or float32"),
        ({"deepspeed": "zero.json"}, "deepspeed is not supported; .*fsdp=full_shard"),
        (
            {"metric_for_best_model": "eval_loss"},
            "is no metric of validation; there is cross_entropy, .* of eval_tasks",
        ),
        ({"metric_for_best_model": "humaneval_greedy_pass@1"}, "is no metric of validation"),
        ({"report_to": "tensorbord"}, "report_to='tensorbord' is not known or not installed"),
        ({"fsdp": "hybrid_shard"}, "use fsdp=full_shard or shard_grad_op"),
        ({"fsdp": True, "fsdp_config": {"version": 1}}, "of options version"),
        ({"fsdp": True, "fsdp_config": {"cpu_offload": True}}, "of options version"),
        ({"fsdp": True, "eval_tasks": ["humaneval"]}, "eval_tasks needs the whole model"),
    ],
)
def test_what_training_refuses(settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        config(tmp_path, **settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rewards": []}, "no reward: set `rewards`"),
        ({"generations": 1}, "generations=1 must be at least 2"),
        ({"max_new_tokens": 0}, "max_new_tokens=0 must be at least 1"),
        ({"generation_temperature": float("nan")}, "generation_temperature=nan"),
        ({"reward_timeout": float("inf")}, "reward_timeout=inf"),
        (
            {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 1},
            "6 answers .* multiple of generations=8",
        ),
    ],
)
def test_what_baselines_refuse(
    settings: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    given = {"rewards": ["bleu"], "output_dir": str(tmp_path), "use_cpu": True, **settings}
    with pytest.raises(ConfigError, match=words):
        RLVRSettings(**given)


def test_baselines_train_in_fp16_and_need_a_token_to_predict(tmp_path: Path) -> None:
    assert SFTSettings(output_dir=str(tmp_path), fp16=True, use_cpu=True).fp16
    with pytest.raises(ConfigError, match="max_length=1 must be at least 2"):
        SFTSettings(output_dir=str(tmp_path), max_length=1, use_cpu=True)


@pytest.mark.parametrize(
    ("settings", "reshard"),
    [
        ({"fsdp": "full_shard"}, True),
        ({"fsdp": True}, True),
        ({"fsdp": "shard_grad_op"}, False),
        ({"fsdp": True, "fsdp_config": {"version": 2, "reshard_after_forward": False}}, False),
    ],
)
def test_what_asks_for_a_sharded_model(settings: dict[str, Any], reshard: bool, tmp_path: Path) -> None:
    found = config(tmp_path, **settings)
    assert found.sharding == Sharding(reshard)
    assert found.fsdp_plugin_args is None, "transformers must not shard it a second time"
    assert config(tmp_path).sharding is None
    assert config(tmp_path, fsdp=False, fsdp_config={"version": 1}).sharding is None


def test_accelerate_launch_does_not_wrap_the_model_in_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with pytest.raises(ConfigError, match="deepspeed is not supported"):
        config(tmp_path)
    monkeypatch.delenv("ACCELERATE_USE_DEEPSPEED")
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ConfigError, match="does not shard the model here; set fsdp=full_shard"):
        processes.start(config(tmp_path))


def test_nothing_is_joined_or_set_up_before_a_run_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launched = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in launched.items():
        monkeypatch.setenv(name, value)
    before = dict(os.environ)
    found = config(tmp_path)
    assert dict(os.environ) == before
    assert not torch.distributed.is_initialized()
    assert (found.world_size, found.process_index, found.local_process_index) == (4, 1, 1)
    assert found.rows_per_step == 4 * 16
    assert "_setup_devices" not in vars(found), "asking for counts sets nothing up either"


def test_a_run_starts_once(tmp_path: Path) -> None:
    found = config(tmp_path)
    processes.start(found)
    assert found.device == torch.device("cpu")
    assert (found.world_size, found.process_index) == (1, 0)


@pytest.mark.parametrize(
    ("metric", "tasks", "larger"),
    [
        ("eval_answer_cross_entropy", [], False),
        ("whitened_proxy", [], True),
        ("humaneval_greedy_pass@1", ["humaneval"], True),
        ("calibration_cfm_at_8", ["calibration"], False),
    ],
)
def test_what_is_best(metric: str, tasks: list[str], larger: bool, tmp_path: Path) -> None:
    assert config(tmp_path, metric_for_best_model=metric, eval_tasks=tasks).greater_is_better == larger


def test_the_default_whitening_is_the_same_in_code_and_settings() -> None:
    import inspect

    from ebft import feature_matching_rewards

    default = inspect.signature(feature_matching_rewards).parameters["whitening"].default
    assert default == MethodConfig().whitening == EvalOptions().method.whitening
