"""Making a configuration looks at the machine and changes nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from ebft import EBFTConfig
from ebft.config.baseline_settings import RLVRSettings, SFTSettings
from ebft.errors import ConfigError
from ebft.runtime import processes


def test_nothing_is_joined_or_set_up_before_a_run_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launched = {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "4",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",  # joining would hang or fail
        "ACCELERATE_USE_FSDP": "true",
        "FSDP_VERSION": "2",
    }
    for name, value in launched.items():
        monkeypatch.setenv(name, value)
    before = dict(os.environ)
    config = EBFTConfig(output_dir=str(tmp_path), use_cpu=True)
    assert dict(os.environ) == before
    assert not torch.distributed.is_initialized()
    assert not config.started
    assert (config.world_size, config.process_index, config.local_process_index) == (4, 1, 1)
    assert config.rows_per_step == 4 * 16
    assert config.sharding is not None
    assert not config.started, "asking for counts sets nothing up either"


@pytest.mark.parametrize(
    ("cls", "name", "words"),
    [
        (EBFTConfig, "max_seq_length", "no setting 'max_seq_length'; here it is called 'context_length'"),
        (EBFTConfig, "horizen", "did you mean 'horizon'"),
        (SFTSettings, "max_seq_length", "here it is called 'max_length'"),
    ],
)
def test_a_name_of_another_tool_in_python(cls: type, name: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=words):
        cls(output_dir=str(tmp_path), **{name: 10})


def test_a_run_starts_once(tmp_path: Path) -> None:
    config = EBFTConfig(output_dir=str(tmp_path), use_cpu=True)
    processes.start(config)
    assert config.started
    assert config.device == torch.device("cpu")
    assert (config.world_size, config.process_index) == (1, 0)


def test_ebft_does_not_train_in_fp16_and_baselines_may(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"fp16=true is not supported: .*; use bf16=true, or float32"):
        EBFTConfig(output_dir=str(tmp_path), fp16=True, use_cpu=True)
    assert SFTSettings(output_dir=str(tmp_path), fp16=True, use_cpu=True).fp16
    assert RLVRSettings(output_dir=str(tmp_path), fp16=True, use_cpu=True, rewards=["bleu"]).fp16


@pytest.mark.parametrize(
    ("metric", "tasks", "larger"),
    [
        ("cfm", [], False),
        ("eval_answer_cross_entropy", [], False),
        ("whitened_proxy", [], True),
        ("reward", [], True),
        ("humaneval_greedy_pass@1", ["humaneval"], True),
        ("calibration_cfm_at_8", ["calibration"], False),
    ],
)
def test_what_is_best(metric: str, tasks: list[str], larger: bool, tmp_path: Path) -> None:
    config = EBFTConfig(output_dir=str(tmp_path), use_cpu=True, metric_for_best_model=metric, eval_tasks=tasks)
    assert config.greater_is_better == larger


@pytest.mark.parametrize("metric", ["crossentropy", "eval_loss", "humaneval_greedy_pass@1"])
def test_a_metric_that_is_none_is_refused_before_anything_is_trained(metric: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is no metric of validation; there is cross_entropy, .* of eval_tasks"):
        EBFTConfig(output_dir=str(tmp_path), use_cpu=True, metric_for_best_model=metric)
