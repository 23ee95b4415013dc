"""The memory estimate: sizes against real models, rules worked out by hand, the whole against measured peaks."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import TrainingArguments

import step
from ebft import plan
from ebft.config.recipe import declared
from ebft.config.settings import default_of
from ebft.model.features import FeatureNetwork
from ebft.plan_memory import Run, Shape
from tests.models import EXTRA_CONFIGS, FAMILIES, tiny_model

MEASURED = Path(__file__).parents[1] / "benchmarks" / "results"
TAPS = [0.25, 0.5, 0.75]
DEFAULTS = {name: default_of(f) for name, f in declared().items()}


def run_of(shape: Shape, **settings: Any) -> Run:
    given = {"bf16": True, "optim": "adamw_torch_fused", "rollout_batch_size": 16, "validation_split": 0.0}
    return Run(shape, {**DEFAULTS, **given, **settings})


def of_benchmark(name: str) -> tuple[dict[str, Any], Run]:
    """What was measured on an H200, and the run."""
    result = json.loads((MEASURED / f"step-h200-{name}.json").read_text())
    given = result["settings"]
    settings = {name: given[name] for name in ("context_length", "horizon", "stride", "samples", "gamma", "lora")}
    shape, sequences = Shape(step.SIZES[given["size"]].config().to_dict()), given["sequences"]
    batch = given["micro_batch"] or sequences
    return result, run_of(shape, **settings, per_device_train_batch_size=batch, rollout_batch_size=sequences)


@pytest.mark.parametrize("name", ["smollm2-135m", "llama3.2-1b", "qwen2.5-1.5b-trees", "qwen2.5-1.5b-lora"])
def test_times_are_near_those_that_were_measured(name: str) -> None:
    result, run = of_benchmark(name)
    run = run.but(per_device_train_batch_size=result["settings"]["sequences"])
    assert plan._seconds(run, "h200") == pytest.approx(result["seconds"]["packed"]["iteration"]["median"], rel=0.25)


@pytest.mark.parametrize("name", ["qwen2.5-1.5b-trees", "qwen2.5-1.5b-micro-batch-8", "llama3.2-1b"])
def test_the_estimate_is_near_the_measured_peak(name: str) -> None:
    """With random weights: their completions have nothing in common."""
    result, run = of_benchmark(name)
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
