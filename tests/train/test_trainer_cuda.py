"""The trainer on a GPU: rollouts and gradients as on a CPU, shards over nccl, 4 bits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from ebft import EBFTTrainer
from tests.baselines.runs import ROWS, make_model, results_of, write_recipe, write_rows
from tests.train.small_runs import config, counting_text, small_model

pytestmark = pytest.mark.cuda


def test_float32_on_a_gpu_gives_what_a_cpu_gives(tmp_path: Path) -> None:
    logs = []
    for device in ("cpu", "cuda"):
        args = config(tmp_path / device, use_cpu=device == "cpu", gamma=0.1, document_masks=True, max_steps=3)
        trainer = EBFTTrainer(small_model(), args, counting_text(), counting_text(documents=8, seed=1))
        trainer.train()
        logs.append([entry for entry in trainer.state.log_history if "reward" in entry])
    for on_cpu, on_gpu in zip(*logs, strict=True):
        for name in ("loss", "reward", "grad_norm", "entropy", "ebft/cfm", "ebft/cross_entropy", "ebft/distinct"):
            assert on_gpu[name] == pytest.approx(on_cpu[name], rel=5e-3, abs=1e-4), name


@pytest.mark.parametrize("changes", [{}, {"document_masks": True}, {"packing": False}], ids=str)
def test_later_steps_compile_nothing_again(tmp_path: Path, changes: dict[str, Any]) -> None:
    graphs: list[int] = []

    class Count(TrainerCallback):
        def on_step_end(self, *_: object, **__: object) -> None:
            graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])

    args = config(tmp_path, use_cpu=False, bf16=True, gamma=0.1, gradient_accumulation_steps=2, max_steps=8, **changes)
    EBFTTrainer(small_model(), args, counting_text(), callbacks=[Count()]).train()
    assert graphs[3] == graphs[-1]


def on_the_gpu(folder: Path, name: str, *options: str) -> dict[str, Any]:
    """The results of `ebft train` in a process of its own, so that process groups end with it."""
    base, rows = folder / "base", folder / "rows.jsonl"
    if not base.exists():
        make_model(base, intermediate_size=128)
        write_rows(rows, ROWS)
    recipe = write_recipe(folder, base, rows, use_cpu=False)
    command = [sys.executable, "-m", "ebft.cli", "train", "--config", str(recipe), "--output_dir", str(folder / name)]
    done = subprocess.run([*command, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return results_of(folder / name)


def test_shards_over_nccl_train_as_a_whole_model_does(tmp_path: Path) -> None:
    whole = on_the_gpu(tmp_path, "whole")
    sharded = on_the_gpu(tmp_path, "sharded", "--fsdp", "full_shard")
    for name in ("eval_cross_entropy", "eval_cfm"):
        assert sharded["after"][name] == pytest.approx(whole["after"][name], rel=1e-3), name
        assert sharded["after"][name] != sharded["before"][name], "it has trained"


def test_four_bits_train_on_a_gpu(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    results = on_the_gpu(tmp_path, "out", "--lora", "--load_in_4bit", "--bf16", "--learning_rate", "0.01")
    assert results["after"]["eval_cross_entropy"] < results["before"]["eval_cross_entropy"]
