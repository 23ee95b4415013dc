"""The memory estimate: sizes against real models, rules worked out by hand, the whole against measured peaks."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import TrainingArguments

from ebft.config.recipe import sections
from ebft.config.settings import default_of
from ebft.errors import ConfigError
from ebft.method.cross_entropy import Head, rows_per_chunk
from ebft.model.features import FeatureNetwork
from ebft.plan import known_settings
from ebft.plan_memory import GIB, Run, Shape
from tests.models import EXTRA_CONFIGS, FAMILIES, tiny_model
from tests.shapes import SHAPES

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
TAPS = [0.25, 0.5, 0.75]
QWEN_7B, QWEN_1B = (Shape(SHAPES[f"Qwen/Qwen2.5-{size}"]().to_dict()) for size in ("7B", "1.5B"))
DEFAULTS = {f.name: default_of(f) for section in sections() for f in fields(section)}


def run_of(shape: Shape, **settings: Any) -> Run:
    given = {"bf16": True, "optim": "adamw_torch_fused", "rollout_batch_size": 16, "validation_split": 0.0}
    return Run(shape, {**DEFAULTS, **given, **settings})


RUN = run_of(QWEN_7B, per_device_train_batch_size=1, gamma=0.1)


def test_plan_knows_every_setting_of_training() -> None:
    """Without importing transformers, whose source it reads."""
    assert {f.name for section in sections() for f in fields(section) if f.init} == known_settings().keys()
    from ebft.plan import _THEIRS

    theirs = {f.name: default_of(f) for f in fields(TrainingArguments)}
    assert {name: theirs[name] for name in _THEIRS} == _THEIRS


@pytest.mark.parametrize("name", ["qwen2.5-1.5b-trees", "qwen2.5-1.5b-micro-batch-8", "llama3.2-1b"])
def test_the_estimate_is_near_the_measured_peak(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With random weights: their completions have nothing in common."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import step

    result = json.loads((BENCHMARKS / "results" / f"step-h200-{name}.json").read_text())
    given = result["settings"]
    settings = {name: given[name] for name in ("context_length", "horizon", "stride", "samples", "gamma")}
    run = run_of(
        Shape(step.SIZES[given["size"]].config().to_dict()),
        **settings,
        per_device_train_batch_size=given["micro_batch"],
        rollout_batch_size=given["sequences"],
    )
    assert run.anchors == result["shape"]["anchors"]
    assert run.shape.parameters == pytest.approx(result["shape"]["parameters"], rel=1e-3)
    peaks = result["peak_memory_bytes"]
    assert run.but(trees=False).peak() == pytest.approx(peaks["untreed"], rel=0.05)
    assert run.peak() == pytest.approx(peaks["packed"], rel=0.05)


@pytest.mark.parametrize("family", [*FAMILIES, *EXTRA_CONFIGS, "mixtral", "olmoe"])
def test_sizes_are_those_of_the_real_model(family: str) -> None:
    """But for norms and biases, which weigh more in a tiny one."""
    model = tiny_model(family)
    shape = Shape(model.config.to_dict())
    assert shape.parameters == pytest.approx(model.num_parameters(), rel=0.03)
    frozen = sum(p.numel() for p in FeatureNetwork(model, TAPS).parameters())
    assert shape.below(TAPS) == pytest.approx(frozen, rel=0.03 if family != "gpt2" else 0.12)  # its positions
    experts = sum(p.numel() for name, p in model.named_parameters() if ".experts." in name)
    assert shape.parameters - shape.active == pytest.approx(experts / 2, rel=0.01)  # a token meets 2 of 4
    adapter = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    if family in ("llama", "qwen2", "qwen3", "gemma3"):
        assert 4 * shape.adapter == get_peft_model(model, adapter).get_nb_trainable_parameters()[0]


def test_models_without_ordinary_heads_are_refused() -> None:
    with pytest.raises(ConfigError, match="sizes of mamba"):
        Shape({"model_type": "mamba", "hidden_size": 8, "num_hidden_layers": 1, "vocab_size": 20})
    with pytest.raises(ConfigError, match="deepseek_v3"):
        Shape(tiny_model("deepseek_v3").config.to_dict())


@pytest.mark.parametrize("name", ["adamw_torch_fused", "sgd", "adagrad"])
def test_optimizer_state_is_that_of_a_real_step(name: str, tmp_path: Path) -> None:
    from transformers import Trainer

    model = tiny_model()
    arguments = TrainingArguments(output_dir=str(tmp_path), optim=name, use_cpu=True, report_to="none")
    optimizer = Trainer(model, arguments).create_optimizer()
    ids = torch.arange(8)[None]
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    tensors = [value for values in optimizer.state.values() for value in values.values() if torch.is_tensor(value)]
    state = sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor.dim())
    of, without = (run_of(Shape(model.config.to_dict()), optim=optim).stages() for optim in (name, "sgd"))
    assert of["rollouts"] - without["rollouts"] == pytest.approx(state, rel=0.01)


def test_a_7b_model_by_hand() -> None:
    """7.62e9 parameters: of each 2 bytes that compute, 4 behind them, 8 of Adam; 4 of gradients from the update on."""
    parameters, head = QWEN_7B.parameters, 152064 * 3584
    assert parameters == pytest.approx(7_615_616_512, rel=1e-3)
    assert QWEN_7B.below(TAPS) == head + 21 * QWEN_7B.layer
    always = 14 * parameters + 2 * QWEN_7B.below(TAPS)
    stages = RUN.stages()
    # Keys and values: 28 layers, 512 wide each, for 1024 tokens and 127 x 4 completions of 7 kept tokens, bf16.
    cache = 16 * 2 * 2 * 28 * 512 * (1024 + 127 * 4 * 7)
    step = 2 * 16 * 1024 * (2 * 3584 + 3 * 18944)
    logits = 4 * 3584 * 152064  # rows as many as the width
    assert stages["rollouts"] == always + cache + max(step, logits)
    assert stages["features"] == always + 2 * 16 * (1024 + 127 * 4 * 8) * (2 * 3584 + 3 * 18944)
    assert stages["optimizer step"] == always + 4 * parameters
    kept = 2 * (1024 + 127 * 4 * 7) * (7 * 3584 + 2 * 18944)  # queries are as wide as the model
    rows = 127 * (1 + 4 * 7) + 1023
    in_loss = 6 * min(rows, 3584) * 152064 + 4 * 3584 * rows + 4 * head
    assert stages["update"] == always + 4 * parameters + 28 * kept + max(in_loss, kept + 2 * head)
    assert RUN.peak() == stages["update"]
    assert rows_per_chunk(Head(torch.empty(152064, 3584, device="meta")), torch.device("cuda")) == 3584


def test_what_changes_the_parts() -> None:
    parameters, eight = QWEN_7B.parameters, Run(QWEN_7B, {**RUN.settings, "fsdp": "full_shard"}, gpus=8)
    gathered = 2 * (QWEN_7B.outside + 2 * QWEN_7B.layer)
    pieces = (16 * parameters + 2 * QWEN_7B.below(TAPS)) / 8
    assert eight.stages()["optimizer step"] == pieces + gathered
    adapter = RUN.but(lora=True, lora_r=1)
    assert adapter.stages()["optimizer step"] == 2 * parameters + 16 * QWEN_7B.adapter
    assert adapter.frozen == 0
    assert RUN.but(kl_weight=0.1).frozen == QWEN_7B.below(TAPS) + parameters
    other = Run(QWEN_7B, RUN.but(lora=True).settings, features=QWEN_1B)
    assert other.frozen == QWEN_1B.below(TAPS)
    quarter = adapter.but(load_in_4bit=True).stages()["optimizer step"] - 16 * QWEN_7B.adapter
    assert quarter - 2 * (QWEN_7B.outside + QWEN_7B.layer) == pytest.approx(0.516 * 28 * QWEN_7B.layer, rel=1e-3)
    kept, between = RUN.stages()["update"], RUN.but(gradient_checkpointing=True).stages()["update"]
    assert kept - between > 27 * 2 * (1024 + 127 * 4 * 7) * (6 * 3584 + 2 * 18944) - 8 * GIB
    evaluated = RUN.but(validation_split=0.1, per_device_eval_batch_size=7, eval_samples=11).stages()
    as_large = RUN.but(rollout_batch_size=7, samples=11).stages()
    assert evaluated["evaluation"] == max(as_large["rollouts"], as_large["features"])
    assert {**evaluated, "evaluation": 0} == {**RUN.stages(), "evaluation": 0}
