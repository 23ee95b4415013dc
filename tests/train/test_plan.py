"""The memory estimate against peaks that were measured on a GPU and are committed with the benchmarks."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from ebft.train.plan import memory_gib

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("size", ["qwen2.5-1.5b", "llama3.2-1b"])
def test_the_estimate_is_near_the_measured_peak(size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import step

    result = json.loads((BENCHMARKS / "results" / f"step-h200-{size}.json").read_text())
    settings = result["settings"]
    training: Any = SimpleNamespace(
        bf16=settings["dtype"] == "bfloat16",
        gradient_checkpointing=False,
        per_device_train_batch_size=settings["micro_batch"],
        device=torch.device("cuda"),
    )
    recipe: Any = SimpleNamespace(training=training, model=SimpleNamespace(lora=False))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(step.SIZES[size].config())
    packed = result["shape"]["packed_tokens"] // settings["sequences"]
    measured = result["peak_memory_bytes"]["packed"] / 2**30
    assert memory_gib(recipe, model, packed) == pytest.approx(measured, rel=0.03)
