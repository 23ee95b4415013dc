"""The memory estimate: its parts against real models, real caches and peft's own count; the whole against peaks that
were measured on a GPU and are committed with the benchmarks."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import AutoModelForCausalLM

from ebft import loading
from ebft.config.method import MethodConfig
from ebft.data.packing import OnHost
from ebft.method.compiling import REASONS_TO_KEEP
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
from ebft.validation import measure
from tests.models import FAMILIES, MIXTURES, tiny_model

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
# The plan says what a run needs. Graphs, which small models got later, take as much again where there is room for it.
WITH_GRAPHS = ("step-h200-smollm2-135m-sharing", "step-h200-smollm2-135m-real")
MEASURED = [f for f in sorted(BENCHMARKS.glob("results/step-h200-*.json")) if not f.stem.startswith(WITH_GRAPHS)]
# Activations that a backward pass makes again are not taken off: the larger a micro-batch, the more they are.
TOO_HIGH = pytest.mark.xfail(strict=True, reason="25 % above what was measured; to be fitted anew, with a new grid")
LAYERS = [0.25, 0.5, 0.75]
WORK = Workload(micro_batch=2, rows=3, context=24, anchors=5, samples=3, horizon=4)


def bytes_of(module: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in module.parameters())


@pytest.mark.parametrize(
    "file",
    [pytest.param(f, id=f.stem, marks=[TOO_HIGH] if f.stem.endswith("micro-batch-8") else []) for f in MEASURED],
)
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
        adapter=loading.count_adapter_weights(model, adapter).trained if settings["lora"] else 0,
    )
    found = estimate(ModelShape.of(model, LAYERS), work, LORA if settings["lora"] else DDP)
    measured = result["peak_memory_bytes"]  # the plan reckons with completions that have nothing in common
    # On the safe side: activations that a backward pass makes again are not taken off.
    assert 0.94 < found.peak / measured.get("untreed", measured["packed"]) < 1.18


def test_the_estimate_is_near_all_peaks_of_the_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contexts of 1024 and 4096 tokens, 4 and 16 samples, horizons of 8 to 64."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import step

    result = json.loads((BENCHMARKS / "results" / "grid-h200-smollm2-135m.json").read_text())
    settings = result["settings"]
    shape = ModelShape.of(meta_model(step.SIZES[settings["size"]].config()), LAYERS)
    assert len(result["rows"]) >= 12
    for row in result["rows"]:
        anchors = (row["context_length"] - row["horizon"]) // row["stride"]
        sizes = (row["context_length"], anchors, row["samples"], row["horizon"])
        found = estimate(shape, Workload(settings["micro_batch"], settings["sequences"], *sizes), DDP)
        assert found.peak == pytest.approx(row["peak_memory_bytes"], rel=0.15), row


@pytest.mark.parametrize("family", [*FAMILIES, *MIXTURES])
def test_weights_are_those_of_the_real_model(family: str) -> None:
    model = tiny_model(family)
    found = estimate(ModelShape.of(model, LAYERS), WORK, DDP)
    working = WorkingCopy(model)
    assert found.weights == bytes_of(working.model)
    assert found.master == bytes_of(model)
    assert found.frozen == bytes_of(FeatureNetwork(model, LAYERS, dtype=torch.bfloat16))


@pytest.mark.parametrize("family", ["llama", "qwen2_moe_dense_first"])
@pytest.mark.parametrize("name", ["adamw_torch_fused", "adafactor", "sgd", "adagrad"])
def test_gradients_and_optimizer_state_are_those_of_a_real_step(name: str, family: str, tmp_path: Path) -> None:
    from transformers import Trainer, TrainingArguments

    model = tiny_model(family)
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


@pytest.mark.parametrize("family", [*FAMILIES, *MIXTURES])
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
    counted = loading.count_adapter_weights(meta_model(model.config), config).trained
    adapted = get_peft_model(model, config)
    assert counted == adapted.get_nb_trainable_parameters()[0]
    found = estimate(ModelShape.of(tiny_model("llama"), LAYERS), replace(WORK, adapter=counted), LORA)
    assert found.gradients == 4 * counted
    assert found.optimizer == 8 * counted
    assert found.frozen == found.master == 0
    if "lm_head" not in (config.modules_to_save or ()):
        base = [p for p in adapted.parameters() if not p.requires_grad]
        assert found.weights == sum(2 * p.numel() for p in base) + 4 * counted


class Saved:
    """Adds up what autograd saves for the backward pass, parameters left out."""

    def __init__(self, module: nn.Module) -> None:
        self.parameters = {p.untyped_storage().data_ptr() for p in module.parameters()}
        self.tensors: dict[int, torch.Tensor] = {}
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self.pack, lambda tensor: tensor)

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in self.parameters:
            self.tensors[place] = tensor
        return tensor

    @property
    def bytes(self) -> int:
        return sum(tensor.untyped_storage().nbytes() for tensor in self.tensors.values())


def test_experts_keep_what_is_counted() -> None:
    """A compiled mixture: only what the partition of torch.compile keeps is looked at, no code is generated."""
    model = tiny_model("mixtral", hidden_size=128, intermediate_size=96).bfloat16()
    shape, experts, tokens = ModelShape.of(model, LAYERS), model.model.layers[0].mlp.experts, 512
    chosen = torch.rand(tokens, 4).topk(2).indices
    share = torch.rand(tokens, 2, dtype=torch.bfloat16, requires_grad=True)  # from the router, which is trained
    saved = Saved(experts)
    keep_all = torch._functorch.config.patch(dict.fromkeys(REASONS_TO_KEEP, True))
    with saved.hooks, keep_all:
        states = torch.randn(tokens, 128, dtype=torch.bfloat16, requires_grad=True)
        torch.compile(experts, backend="aot_eager_decomp_partition")(states, chosen, share)
    layer = shape.feed_forward[0]
    assert saved.bytes == pytest.approx(2 * tokens * (3 * layer.inner + 2 * layer.experts * shape.width), rel=0.05)


def test_an_adapter_of_experts_builds_them_anew() -> None:
    config = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    model = tiny_model("mixtral")
    experts = sum(p.numel() for name, p in model.named_parameters() if ".experts." in name)
    rebuilt, shape = (
        loading.count_adapter_weights(meta_model(model.config), config).rebuilt,
        ModelShape.of(model, LAYERS),
    )
    assert rebuilt == experts
    adapted = get_peft_model(model, config)
    saved = Saved(adapted)
    with saved.hooks:
        adapted(input_ids=torch.arange(8)[None])
    whole = [t.numel() for t in saved.tensors.values() if t.dim() == 3 and len(t) == 4 and t.numel() * 12 >= experts]
    assert sum(whole) == rebuilt
    work = replace(WORK, adapter=1, bf16=False)
    without, found = (estimate(shape, replace(work, rebuilt=n), LORA) for n in (0, rebuilt))
    assert found.activations - without.activations == 4 * rebuilt
    assert found.backward - without.backward == found.rolling - without.rolling == 4 * rebuilt / shape.layers
    assert loading.count_adapter_weights(meta_model(tiny_model("llama").config), config).rebuilt == 0


def test_evaluation_is_rollouts_and_features_of_its_own_size() -> None:
    shape = ModelShape.of(tiny_model("llama"), LAYERS)
    found = estimate(shape, replace(WORK, eval_rows=7, eval_samples=11), DDP)
    as_large = estimate(shape, replace(WORK, rows=7, samples=11), DDP)
    assert found.evaluation == max(as_large.kv_cache + as_large.rolling, as_large.forward)
    assert found.stages()["evaluation"] == max(as_large.stages()["rollout"], as_large.stages()["features"])
    without = estimate(shape, WORK, DDP)
    assert "evaluation" not in without.stages()
    for stage, needed in without.stages().items():
        assert found.stages()[stage] == needed, "training is what it was"
    small = estimate(shape, replace(WORK, eval_rows=1, eval_samples=2), DDP)
    assert (small.peak_stage, small.peak) == (without.peak_stage, without.peak)
    large = estimate(shape, replace(WORK, eval_rows=500, eval_samples=50), DDP)
    assert (large.peak_stage, large.peak) == ("evaluation", large.stages()["evaluation"])


def allocated(run: Callable[[], object]) -> int:
    """The most bytes that torch had allocated during a run on the CPU, beyond those at its start."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiled:
        run()
    assert profiled.profiler is not None
    events = profiled.profiler.kineto_results.events()
    return max(accumulate(event.nbytes() for event in events if event.name() == "[memory]"))


@pytest.mark.parametrize(("family", "below"), [("llama", 0.83), ("mixtral", 0.7)])
def test_evaluation_takes_what_it_allocates(family: str, below: float) -> None:
    """The rule is for compiled layers; these are not, and hold intermediate results longer, in the same proportion."""
    model = tiny_model(family, hidden_size=128, intermediate_size=512 if family == "llama" else 256, head_dim=32)
    features, shape = FeatureNetwork(model, LAYERS), ModelShape.of(model, LAYERS)
    for rows, samples in (4, 4), (4, 16), (8, 8):
        # The plan reckons with completions that have nothing in common.
        method = MethodConfig(context_length=64, horizon=4, stride=8, samples=2, eval_samples=samples, trees=False)
        ids = torch.randint(0, 61, (rows, 64))
        on_host = OnHost(torch.zeros_like(ids), torch.ones_like(ids, dtype=torch.bool), ids)
        batch = {"input_ids": ids, "sequence_id": torch.arange(rows), "on_host": on_host}
        batch |= {"document_ids": on_host.document_ids, "answer_mask": on_host.answer_mask}
        measured = allocated(lambda batch=batch, method=method: measure(model, features, batch, method, None))
        work = Workload(1, 1, 64, 7, 2, 4, eval_rows=rows, eval_samples=samples, bf16=False, device="cpu")
        assert estimate(shape, work, DDP).evaluation / measured == pytest.approx(below, abs=0.03)


@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_four_bits_are_what_bitsandbytes_keeps(family: str, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    # Wide enough that the scales of a matrix are whole blocks.
    model = tiny_model(family, hidden_size=256, intermediate_size=512, num_attention_heads=4, num_key_value_heads=4)
    model.save_pretrained(tmp_path)
    shape = ModelShape.of(model, LAYERS)
    options = loading.four_bit(torch.device("cpu"))
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
    work = replace(work, eval_rows=1, eval_samples=6)
    room = estimate(shape, replace(work, micro_batch=50, rows=70), strategy).peak
    n = memory.largest_micro_batch(shape, work, strategy, room)
    rows = memory.largest_rollout_batch(shape, work, strategy, room)
    assert estimate(shape, replace(work, micro_batch=n, rows=rows), strategy).peak <= room
    assert estimate(shape, replace(work, micro_batch=n + 1, rows=rows), strategy).peak > room
    assert estimate(shape, replace(work, micro_batch=n, rows=rows + 1), strategy).peak > room
    evaluated = memory.largest_eval_batch(shape, work, strategy, room)
    assert estimate(shape, replace(work, eval_rows=evaluated), strategy).peak <= room
    assert estimate(shape, replace(work, eval_rows=evaluated + 1), strategy).peak > room
    assert memory.largest_micro_batch(shape, work, strategy, 100.0) == 0
