"""Who gets which rows, and what is refused before anything starts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from ebft import EBFTConfig
from ebft.config.parallel import Sharding
from ebft.errors import ConfigError
from ebft.runtime import processes as runtime_processes


def test_more_processes_than_gpus_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ConfigError, match="4 processes were started on this machine, which has 2 GPUs; start 2"):
        EBFTConfig(output_dir=str(tmp_path))


def config(tmp_path: Path, **settings: Any) -> EBFTConfig:
    return EBFTConfig(output_dir=str(tmp_path), use_cpu=True, **settings)


@pytest.mark.parametrize(
    ("settings", "reshard"),
    [
        ({"fsdp": "full_shard"}, True),
        ({"fsdp": True}, True),
        ({"fsdp": "full_shard auto_wrap", "fsdp_config": {"fsdp_version": 2}}, True),
        ({"fsdp": "shard_grad_op"}, False),
        ({"fsdp": True, "fsdp_config": {"reshard_after_forward": False, "state_dict_type": "FULL_STATE_DICT"}}, False),
    ],
)
def test_what_asks_for_a_sharded_model(tmp_path: Path, settings: dict[str, Any], reshard: bool) -> None:
    found = config(tmp_path, **settings)
    assert found.sharding == Sharding(reshard)
    assert found.fsdp_plugin_args is None, "transformers must not shard it a second time"


def test_nothing_asks_for_a_sharded_model(tmp_path: Path) -> None:
    assert config(tmp_path).sharding is None
    assert config(tmp_path, fsdp=False).sharding is None
    assert config(tmp_path, fsdp_config={"version": 1}).sharding is None


def test_accelerate_launch_asks_by_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_RESHARD_AFTER_FORWARD": "false"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    found = config(tmp_path)
    assert found.sharding == Sharding(False)
    assert os.environ["ACCELERATE_USE_FSDP"] == "true", "making a configuration changes nothing"
    runtime_processes.start(found)
    assert "ACCELERATE_USE_FSDP" not in os.environ, "accelerate must not shard it a second time"
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("FSDP_VERSION", "1")
    with pytest.raises(ConfigError, match="version 1 of FSDP is not supported; use version 2"):
        config(tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fsdp": "hybrid_shard"}, "hybrid_shard is not supported; use full_shard"),
        ({"fsdp": "full_shard offload"}, "offload is not supported"),
        ({"fsdp": True, "fsdp_config": {"version": 1}}, "version 1 of FSDP is not supported; use version 2"),
        ({"fsdp": True, "fsdp_config": {"cpu_offload": True}}, "cpu_offload of fsdp is not supported; use more proc"),
        ({"fsdp": True, "fsdp_config": {"activation_checkpointing": True}}, "use gradient_checkpointing=true"),
        ({"fsdp": True, "fsdp_config": {"reshard": True}}, "fsdp_config holds 'reshard'; it takes version and"),
        ({"fsdp": True, "fsdp_config": "nowhere.json"}, "fsdp_config='nowhere.json' cannot be read"),
        ({"fsdp": True, "eval_tasks": ["humaneval"]}, "eval_tasks run in the first process"),
        ({"fsdp": True, "fp16": True}, "fsdp with fp16=true is not supported; use bf16=true"),
        ({"deepspeed": "zero.json"}, r"deepspeed=zero\.json is not supported; .* set fsdp=full_shard"),
    ],
)
def test_what_is_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(tmp_path, **settings)
