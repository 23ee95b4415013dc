"""Who gets which rows, and what is refused before anything starts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.data_loader import SeedableRandomSampler
from torch.utils.data import BatchSampler, SequentialSampler

from ebft import EBFTConfig, EBFTTrainer, cli
from ebft.config.parallel import Sharding
from ebft.data.loaders import NOTHING, PartOfBatches, part_of
from ebft.errors import ConfigError
from ebft.runtime import processes as runtime_processes
from tests.models import tiny_model


@pytest.mark.parametrize("rows", range(1, 22))
@pytest.mark.parametrize("processes", [1, 2, 3, 4])
def test_an_epoch_has_every_row_once_on_all_processes_together(rows: int, processes: int) -> None:
    order = SeedableRandomSampler(range(rows), data_seed=3)
    parts = []
    for process in range(processes):
        batches = PartOfBatches(order, 2, process, processes, drop_last=False)
        batches.set_epoch(5)  # a sampler moves on by an epoch each time it is gone through
        parts.append(list(batches))
        assert len(parts[-1]) == len(batches)
    order.set_epoch(5)
    expected = list(BatchSampler(order, 2 * processes, drop_last=False))
    for number, together in enumerate(zip(*parts, strict=True)):
        assert len({len(part) for part in together}) == 1, "passes of the same size"
        assert [row for part in together for row in part if row != NOTHING] == expected[number]
    assert sorted(row for part in parts for batch in part for row in batch if row != NOTHING) == list(range(rows))


def test_drop_last_leaves_out_what_does_not_fill_a_batch() -> None:
    parts = [list(PartOfBatches(SequentialSampler(range(11)), 2, p, 2, drop_last=True)) for p in range(2)]
    assert parts == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]


def test_a_short_batch_is_shared_out() -> None:
    assert [part_of([0, 1, 2, 3, 4], p, 4) for p in range(4)] == [[0, 1], [2, 3], [4, -1], [-1, -1]]


def test_more_processes_than_gpus_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ConfigError, match="4 processes were started on this machine, which has 2 GPUs; start 2"):
        EBFTConfig(output_dir=str(tmp_path))


@pytest.mark.parametrize("number", [[], ["0"], ["two"], ["2", "3"]])
def test_launch_wants_a_number(number: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "--model", "m", "--launch", *number]) == 2
    assert "--launch takes the number of processes to start" in capfd.readouterr().err


def test_launch_inside_a_launcher_is_refused(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert cli.main(["train", "--launch=2"]) == 2
    assert "leave it out under torchrun" in capfd.readouterr().err


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


def test_a_quantised_model_is_not_sharded(tmp_path: Path) -> None:
    model: Any = tiny_model("llama")
    model.is_quantized = True
    with pytest.raises(ConfigError, match="fsdp with a quantised model is not supported; load it in float32"):
        EBFTTrainer(model, config(tmp_path, fsdp="full_shard"))


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
