"""The memory estimate: its parts against real models, real caches and peft's own count; the whole against peaks that
were measured on a GPU and are committed with the benchmarks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import AutoModelForCausalLM

from ebft import adapters
from ebft.method.layout import StridedLayout
from ebft.model import rollout as rollout_module
from ebft.model.attention import CachedPass
from ebft.model.features import FeatureNetwork
from ebft.model.working_copy import WorkingCopy
from ebft.planning import memory
from ebft.planning.memory import estimate
from ebft.planning.model_shape import ModelShape, meta_model
from ebft.planning.strategies import DDP, FSDP2, LORA, LORA_FSDP2, QLORA, STRATEGIES, Strategy
from ebft.planning.workload import Workload
from tests.models import FAMILIES, tiny_model

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MEASURED = sorted(BENCHMARKS.glob("results/step-h200-*.json"))
LAYERS = [0.25, 0.5, 0.75]
WORK = Workload(micro_batch=2, rows=3, context=24, anchors=5, samples=3, horizon=4)


def bytes_of(module: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in module.parameters())


@pytest.mark.parametrize("file", MEASURED, ids=lambda file: file.stem)
def test_the_estimate_is_near_the_measured_peak(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import step

    result = json.loads(file.read_text())
    settings = result["settings"]
    model = meta_model(step.SIZES[settings["size"]].config())
    adapter = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    work = Workload(
        micro_batch=settings["micro_batch"] or settings["sequences"],
        rows=settings["sequences"],
        context=settings["context_length"],
        anchors=result["shape"]["anchors"],
        samples=settings["samples"],
        horizon=settings["horizon"],
        bf16=settings["dtype"] == "bfloat16",
        checkpointing=settings["gradient_checkpointing"],
        optimizer="adafactor" if settings["optimizer"] == "adafactor" else "adamw_torch_fused",
        adapter=adapters.count_parameters(model, adapter) if settings["lora"] else 0,
    )
    found = estimate(ModelShape.of(model, LAYERS), work, LORA if settings["lora"] else DDP)
    assert found.peak == pytest.approx(result["peak_memory_bytes"]["packed"], rel=0.15)


def test_the_estimate_is_near_all_peaks_of_the_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contexts of 512 to 4096 tokens, 4 to 16 samples, horizons of 4 to 64."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import step

    result = json.loads((BENCHMARKS / "results" / "grid-h200-smollm2-135m.json").read_text())
    settings = result["settings"]
    shape = ModelShape.of(meta_model(step.SIZES[settings["size"]].config()), LAYERS)
    assert len(result["rows"]) > 50
    for row in result["rows"]:
        anchors = (row["context_length"] - row["horizon"]) // row["stride"]
        sizes = (row["context_length"], anchors, row["samples"], row["horizon"])
        found = estimate(shape, Workload(settings["micro_batch"], settings["sequences"], *sizes), DDP)
        assert found.peak == pytest.approx(row["peak_memory_bytes"], rel=0.15), row


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_are_those_of_the_real_model(family: str) -> None:
    model = tiny_model(family)
    found = estimate(ModelShape.of(model, LAYERS), WORK, DDP)
    working = WorkingCopy(model)
    assert found.weights == bytes_of(working.model)
    assert found.master == bytes_of(model)
    assert found.frozen == bytes_of(FeatureNetwork(model, LAYERS, dtype=torch.bfloat16))


@pytest.mark.parametrize("name", ["adamw_torch_fused", "adafactor", "sgd", "adagrad"])
def test_gradients_and_optimizer_state_are_those_of_a_real_step(name: str, tmp_path: Path) -> None:
    from transformers import Trainer, TrainingArguments

    model = tiny_model("llama")
    arguments = TrainingArguments(output_dir=str(tmp_path), optim=name, use_cpu=True, report_to="none")
    optimizer = Trainer(model, arguments).create_optimizer()
    ids = torch.arange(8)[None]
    model(input_ids=ids, labels=ids).loss.backward()
    gradients = sum(p.grad.numel() * p.grad.element_size() for p in model.parameters() if p.grad is not None)
    optimizer.step()
    state = sum(
        value.numel() * value.element_size()
        for values in optimizer.state.values()
        for value in values.values()
        if torch.is_tensor(value) and value.dim() > 0
    )
    found = estimate(ModelShape.of(model, LAYERS), replace(WORK, optimizer=name), DDP)
    assert found.gradients == gradients
    assert found.optimizer == state


@pytest.mark.parametrize("family", FAMILIES)
def test_keys_and_values_are_those_of_a_real_rollout(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[CachedPass] = []

    class Kept(CachedPass):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            passes.append(self)

    monkeypatch.setattr(rollout_module, "CachedPass", Kept)
    model = tiny_model(family)
    layout = StridedLayout(WORK.context, WORK.horizon, 4, WORK.samples)
    assert layout.num_anchors == WORK.anchors
    assert layout.packed_length == WORK.packed
    rollout_module.rollout(model, torch.zeros(WORK.rows, WORK.context, dtype=torch.long), layout)
    held = [t for kept in passes for part in (kept.context, kept.own) for pair in part.values() for t in pair]
    found = estimate(ModelShape.of(model, LAYERS), replace(WORK, bf16=False), DDP)
    assert found.kv_cache == sum(t.numel() * t.element_size() for t in held)


@pytest.mark.parametrize(
    "config",
    [
        LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"),
        LoraConfig(r=2, target_modules=["q_proj", "down_proj"], use_dora=True, task_type="CAUSAL_LM"),
        LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["lm_head"], task_type="CAUSAL_LM"),
    ],
    ids=["all-linear", "dora", "modules-to-save"],
)
def test_the_adapter_is_as_large_as_peft_says(config: LoraConfig) -> None:
    model = tiny_model("llama")
    counted = adapters.count_parameters(meta_model(model.config), config)
    adapted = get_peft_model(model, config)
    assert counted == adapted.get_nb_trainable_parameters()[0]
    found = estimate(ModelShape.of(tiny_model("llama"), LAYERS), replace(WORK, adapter=counted), LORA)
    assert found.gradients == 4 * counted
    assert found.optimizer == 8 * counted
    assert found.frozen == found.master == 0
    if "lm_head" not in (config.modules_to_save or ()):
        base = [p for p in adapted.parameters() if not p.requires_grad]
        assert found.weights == sum(2 * p.numel() for p in base) + 4 * counted


def test_four_bits_are_what_bitsandbytes_keeps(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    # Wide enough that the scales of a matrix are whole blocks.
    model = tiny_model("llama", hidden_size=256, intermediate_size=512, num_attention_heads=4, num_key_value_heads=4)
    model.save_pretrained(tmp_path)
    shape = ModelShape.of(model, LAYERS)
    options = adapters.four_bit(torch.device("cpu"))
    kept = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16, **options)
    real = bytes_of(kept)
    for parameter in kept.parameters():
        state = getattr(parameter, "quant_state", None)
        if state is not None:
            real += state.absmax.nbytes + state.state2.absmax.nbytes
    found = estimate(shape, replace(WORK, adapter=1), QLORA)
    assert found.weights - 4 - 2 * shape.largest_linear == pytest.approx(real, rel=0.001)


def test_more_gpus_take_smaller_pieces_and_gather_the_same() -> None:
    shape = ModelShape.of(tiny_model("llama"), LAYERS)
    one, two, four = (estimate(shape, replace(WORK, gpus=n), FSDP2) for n in (1, 2, 4))
    for name in ("master", "optimizer", "gradients"):
        assert getattr(one, name) == 2 * getattr(two, name) == 4 * getattr(four, name)
    # Two layers, embedding, head and norm in bf16.
    model = tiny_model("llama")
    layer = sum(p.numel() for p in model.model.layers[0].parameters())
    others = sum(p.numel() for n, p in model.named_parameters() if ".layers." not in n)
    assert one.weights == four.weights == 2 * (2 * layer + others)


def test_an_adapter_on_a_model_in_pieces() -> None:
    shape, adapter = ModelShape.of(tiny_model("llama"), LAYERS), 1000
    whole = estimate(shape, replace(WORK, adapter=adapter), LORA)
    pieces = estimate(shape, replace(WORK, adapter=adapter, gpus=4), LORA_FSDP2)
    gathered = estimate(shape, replace(WORK, gpus=4), FSDP2).weights
    assert pieces.weights == whole.weights / 4 + gathered
    assert (pieces.gradients, pieces.optimizer, pieces.frozen) == (4 * adapter / 4, 8 * adapter / 4, 0)


def test_checkpointing_keeps_what_is_between_the_layers() -> None:
    shape = ModelShape.of(tiny_model("llama"), LAYERS)
    plain, checkpointed = (estimate(shape, replace(WORK, checkpointing=on), DDP) for on in (False, True))
    tokens = WORK.micro_batch * WORK.packed
    assert checkpointed.activations == 2 * tokens * 64 * 4  # bf16, width 64, 4 layers
    assert checkpointed.activations < plain.activations
    assert checkpointed.backward > plain.backward


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
def test_the_largest_batches_fit_and_one_more_does_not(strategy: Strategy) -> None:
    shape = ModelShape.of(tiny_model("llama"), LAYERS)
    work = replace(WORK, adapter=100)
    room = estimate(shape, replace(work, micro_batch=50, rows=70), strategy).peak
    n = memory.largest_micro_batch(shape, work, strategy, room)
    rows = memory.largest_rollout_batch(shape, work, strategy, room)
    assert estimate(shape, replace(work, micro_batch=n, rows=rows), strategy).peak <= room
    assert estimate(shape, replace(work, micro_batch=n + 1, rows=rows), strategy).peak > room
    assert estimate(shape, replace(work, micro_batch=n, rows=rows + 1), strategy).peak > room
    assert memory.largest_micro_batch(shape, work, strategy, 100.0) == 0
