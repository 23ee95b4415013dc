"""`ebft plan`: the memory of one GPU by part, for every strategy to train a recipe's model, and what would fit.

Only the model's configuration is read: a folder that holds nothing but config.json will do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebft.errors import ConfigError, first_line
from ebft.planning.memory import (
    GIB,
    ROOM,
    Memory,
    estimate,
    largest_eval_batch,
    largest_micro_batch,
    largest_rollout_batch,
)
from ebft.planning.strategies import STRATEGIES, Strategy, strategy_of
from ebft.planning.workload import Workload

if TYPE_CHECKING:  # torch and transformers are imported when there is a recipe to plan
    from ebft.config.recipe import Recipe

PARTS = {
    "weights": "weights that compute",
    "master": "float32 weights behind them",
    "optimizer": "optimiser",
    "gradients": "gradients",
    "frozen": "frozen network",
    "activations": "activations",
    "backward": "backward pass",
    "logits": "logits chunk, head's gradient",
    "kv_cache": "keys and values of rollouts",
    "rolling": "a step of rollouts",
    "forward": "features of rollouts",
    "stepping": "optimiser's step",
    "evaluation": "a batch of evaluation",
}
STAGES = {
    "rollout": "rollouts",
    "features": "features",
    "update": "update",
    "step": "optimiser's step",
    "evaluation": "evaluation",
}


@dataclass(frozen=True)
class Hardware:
    gpus: int
    gpu_memory_gib: float  # of each

    def __post_init__(self) -> None:
        if self.gpus < 1:
            raise ConfigError(f"gpus={self.gpus} must be at least 1")
        if not self.gpu_memory_gib > 0:
            raise ConfigError(f"gpu_memory={self.gpu_memory_gib} must be above 0, in GiB")

    @property
    def room(self) -> float:
        """Bytes of a GPU that a run may use."""
        return (1 - ROOM) * self.gpu_memory_gib * GIB


@dataclass(frozen=True)
class StrategyPlan:
    memory: Memory
    fits: bool
    largest_micro_batch: int
    largest_rollout_batch: int
    largest_eval_batch: int | None  # None: there is no evaluation
    adapter_parameters: int


@dataclass(frozen=True)
class Plan:
    model: str
    parameters: int
    active: int  # parameters that a token meets; fewer than all in a mixture of experts
    hardware: Hardware
    work: Workload
    chosen: Strategy  # how the recipe itself trains
    strategies: dict[Strategy, StrategyPlan]


def plan(recipe: Recipe, hardware: Hardware) -> Plan:
    from ebft import adapters
    from ebft.planning.model_shape import ModelShape, meta_model

    training = recipe.training
    model = meta_model(_model_config(recipe, "model", recipe.model.model))
    shape = ModelShape.of(model, training.feature_taps)
    work = Workload.of(recipe, hardware.gpus)
    if training.feature_model is not None:
        other = meta_model(_model_config(recipe, "feature_model", training.feature_model))
        work = replace(work, other_features=ModelShape.of(other, training.feature_taps).frozen)
    adapter = rebuilt = 0
    if find_spec("peft") is not None:
        asked = recipe if recipe.model.adapted else replace(recipe, model=replace(recipe.model, lora=True))
        adapter = adapters.count_parameters(model, adapters.peft_config(asked))
        rebuilt = adapters.count_rebuilt(model, adapters.peft_config(asked))
    strategies: dict[Strategy, StrategyPlan] = {}
    for strategy in STRATEGIES:
        if strategy.adapter and not adapter:
            continue  # peft, which knows the adapter's size, is not installed
        this = replace(work, adapter=adapter, rebuilt=rebuilt) if strategy.adapter else work
        needed = estimate(shape, this, strategy)
        strategies[strategy] = StrategyPlan(
            memory=needed,
            fits=needed.peak <= hardware.room,
            largest_micro_batch=largest_micro_batch(shape, this, strategy, hardware.room),
            largest_rollout_batch=largest_rollout_batch(shape, this, strategy, hardware.room),
            largest_eval_batch=largest_eval_batch(shape, this, strategy, hardware.room) if this.eval_rows else None,
            adapter_parameters=this.adapter,
        )
    return Plan(recipe.model.model, shape.parameters, shape.active, hardware, work, strategy_of(recipe), strategies)


def _model_config(recipe: Recipe, field: str, name: str) -> Any:
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    from ebft import fetch

    place = fetch.resolve(name)
    if name.startswith(("/", ".", "~")) and not Path(place).expanduser().is_dir():
        raise ConfigError(f"{field}={name!r}: no such folder")
    try:
        return AutoConfig.from_pretrained(place, trust_remote_code=recipe.model.trust_remote_code)
    except (OSError, ValueError, StrictDataclassError) as error:
        # The first line of a StrictDataclassError names a field, its cause says what is wrong with it.
        reason = (error.__cause__ if isinstance(error, StrictDataclassError) else None) or error
        raise ConfigError(f"the config.json of {field}={name!r} cannot be loaded: {first_line(reason)}") from None


def table(found: Plan) -> list[tuple[str, ...]]:
    """GiB on each GPU, or MiB if no strategy needs a GiB."""
    plans = list(found.strategies.values())
    unit, size = ("MiB", 2**20) if max(p.memory.peak for p in plans) < GIB else ("GiB", GIB)

    def shown(values: Iterable[float]) -> list[str]:
        return [f"{value / size:.1f}" for value in values]

    evaluates = found.work.eval_rows > 0
    titles = {part: title for part, title in PARTS.items() if evaluates or part != "evaluation"}
    parts = [(title, *shown(getattr(p.memory, part) for p in plans)) for part, title in titles.items()]
    stages = [
        (f"during {STAGES[stage]}", *shown(p.memory.stages()[stage] for p in plans))
        for stage in plans[0].memory.stages()
    ]
    rows = [
        (f"{unit} on each GPU", *(strategy.name for strategy in found.strategies)),
        *parts,
        ("",) * (1 + len(plans)),
        *stages,
        ("peak", *shown(p.memory.peak for p in plans)),
        ("fits", *("yes" if p.fits else "no" for p in plans)),
        ("largest per_device_train_batch_size", *(str(p.largest_micro_batch or "none fits") for p in plans)),
        ("largest rollout_batch_size", *(str(p.largest_rollout_batch or "none fits") for p in plans)),
    ]
    if evaluates:
        largest = (str(p.largest_eval_batch or "none fits") for p in plans)
        rows.append(("largest per_device_eval_batch_size", *largest))
    return rows


def introduction(found: Plan) -> list[str]:
    work, gpus = found.work, found.hardware.gpus
    active = "" if found.active == found.parameters else f" ({found.active:,} of them for a token)"
    lines = [
        f"{found.model}: {found.parameters:,} parameters{active}, {gpus} GPU{'s' if gpus > 1 else ''} of "
        f"{found.hardware.gpu_memory_gib:g} GiB. Computed, not run.",
        f"Packed sequences of {work.packed:,} tokens ({work.context:,} of text), {work.micro_batch} in a micro-batch, "
        f"{work.rows} rolled out at once, {'bf16' if work.bf16 else 'float32'}, {work.optimizer}, gradient "
        f"checkpointing {'on' if work.checkpointing else 'off'}.",
    ]
    if work.eval_rows:
        lines.append(
            f"Evaluation: {work.eval_rows} at once, packed to {work.evaluation.packed:,} tokens with "
            f"{work.eval_samples} samples from every anchor."
        )
    adapter = max(planned.adapter_parameters for planned in found.strategies.values())
    if adapter:
        lines.append(f"The adapter of lora and qlora has {adapter:,} parameters.")
    else:
        lines.append("Adapters are left out: install peft with `pip install ebft[peft]`.")
    loaded = [f"{bytes_ * found.parameters / GIB:,.0f} GiB" for bytes_ in (work.trained_bytes, work.compute_bytes)]
    lines.append(
        f"A process that loads the whole model needs {loaded[0]} of its machine's memory, with lora {loaded[1]}."
    )
    lines.append(f"What fits leaves {ROOM:.0%} free for CUDA, communication and fragments.")
    evaluation = [s.name for s, planned in found.strategies.items() if planned.memory.peak_stage == "evaluation"]
    if evaluation:
        lines.append(
            f"The peak of {', '.join(evaluation)} is evaluation's; a smaller per_device_eval_batch_size lowers it."
        )
    return lines


def as_json(found: Plan) -> dict[str, Any]:
    """Everything, in bytes."""
    return {
        "model": found.model,
        "parameters": found.parameters,
        "active_parameters": found.active,
        "gpus": found.hardware.gpus,
        "gpu_memory_bytes": found.hardware.gpu_memory_gib * GIB,
        "room": ROOM,
        "settings": asdict(found.work),
        "recipe_trains_by": found.chosen.name,
        "computed": True,
        "ways": {
            strategy.name: {
                "bytes": asdict(planned.memory),
                "stages": planned.memory.stages(),
                "peak": planned.memory.peak,
                "peak_stage": planned.memory.peak_stage,
                "fits": planned.fits,
                "largest_per_device_train_batch_size": planned.largest_micro_batch,
                "largest_rollout_batch_size": planned.largest_rollout_batch,
                "largest_per_device_eval_batch_size": planned.largest_eval_batch,
                "adapter_parameters": planned.adapter_parameters,
            }
            for strategy, planned in found.strategies.items()
        },
    }
