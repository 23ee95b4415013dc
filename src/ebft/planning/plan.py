"""`ebft plan`: the memory of one GPU by part, for every way to train a recipe's model, and what would fit.

Only the model's configuration is read: a folder that holds nothing but config.json will do.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from ebft import adapters, fetch
from ebft.config.recipe import Recipe
from ebft.errors import ConfigError, first_line
from ebft.planning import memory
from ebft.planning.memory import ADAPTED, GIB, ROOM, WAYS, Memory, Shape, Way, Work

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
}
STAGES = {"rollout": "rollouts", "features": "features", "update": "update", "step": "optimiser's step"}


@dataclass(frozen=True)
class Planned:
    """One way to train."""

    memory: Memory
    fits: bool
    largest_micro_batch: int
    largest_rollout_batch: int
    adapter_parameters: int


@dataclass(frozen=True)
class Plan:
    model: str
    parameters: int
    gpus: int
    gpu_memory_gib: float
    work: Work
    chosen: Way  # how the recipe itself trains
    ways: dict[Way, Planned]


def plan(recipe: Recipe, gpus: int, gpu_memory_gib: float) -> Plan:
    if gpus < 1:
        raise ConfigError(f"gpus={gpus} must be at least 1")
    if not gpu_memory_gib > 0:
        raise ConfigError(f"gpu_memory={gpu_memory_gib} must be above 0, in GiB")
    training = recipe.training
    model = memory.meta_model(_model_config(recipe, "model", recipe.model.model))
    shape = Shape.of(model, training.feature_layers)
    work = Work.of(recipe, gpus)
    if training.feature_model is not None:
        other = memory.meta_model(_model_config(recipe, "feature_model", training.feature_model))
        work = replace(work, other_features=Shape.of(other, training.feature_layers).frozen)
    room = (1 - ROOM) * gpu_memory_gib * GIB
    adapter = 0
    if find_spec("peft") is not None:
        asked = recipe if recipe.model.adapted else replace(recipe, model=replace(recipe.model, lora=True))
        adapter = adapters.count_parameters(model, adapters.peft_config(asked))
    ways: dict[Way, Planned] = {}
    for way in WAYS:
        adapted = way in ADAPTED
        if adapted and not adapter:
            continue  # peft, which knows the adapter's size, is not installed
        this = replace(work, adapter=adapter if adapted else 0)
        needed = memory.estimate(shape, this, way)
        ways[way] = Planned(
            needed,
            needed.peak <= room,
            memory.largest_micro_batch(shape, this, way, room),
            memory.largest_rollout_batch(shape, this, way, room),
            this.adapter,
        )
    return Plan(recipe.model.model, shape.parameters, gpus, gpu_memory_gib, work, memory.way_of(recipe), ways)


def _model_config(recipe: Recipe, field: str, name: str) -> Any:
    place = fetch.resolve(name)
    if name.startswith(("/", ".", "~")) and not Path(place).expanduser().is_dir():
        raise ConfigError(f"{field}={name!r}: no such folder")
    try:
        return AutoConfig.from_pretrained(place, trust_remote_code=recipe.model.trust_remote_code)
    except (OSError, ValueError) as error:
        raise ConfigError(f"the config.json of {field}={name!r} cannot be loaded: {first_line(error)}") from None


def table(found: Plan) -> list[tuple[str, ...]]:
    """GiB on each GPU, or MiB if that is more than a small model needs."""
    small = max(planned.memory.peak for planned in found.ways.values()) < GIB
    unit, size = ("MiB", 2**20) if small else ("GiB", GIB)

    def row(title: str, values: Any) -> tuple[str, ...]:
        return (title, *(values(planned) for planned in found.ways.values()))

    def shown(value: float) -> str:
        return f"{value / size:.1f}"

    rows: list[tuple[str, ...]] = [(f"{unit} on each GPU", *found.ways)]
    rows += [row(title, lambda p, name=name: shown(getattr(p.memory, name))) for name, title in PARTS.items()]
    rows.append(("",) * len(rows[0]))
    rows += [
        row(f"during {title}", lambda p, name=name: shown(p.memory.stages()[name])) for name, title in STAGES.items()
    ]
    rows.append(row("peak", lambda p: shown(p.memory.peak)))
    rows.append(row("fits", lambda p: "yes" if p.fits else "no"))
    rows.append(row("largest per_device_train_batch_size", lambda p: str(p.largest_micro_batch or "none fits")))
    rows.append(row("largest rollout_batch_size", lambda p: str(p.largest_rollout_batch or "none fits")))
    return rows


def introduction(found: Plan) -> list[str]:
    work = found.work
    lines = [
        f"{found.model}: {found.parameters:,} parameters, {found.gpus} GPU{'s' if found.gpus > 1 else ''} of "
        f"{found.gpu_memory_gib:g} GiB. Computed, not run.",
        f"Packed sequences of {work.packed:,} tokens ({work.context:,} of text), {work.micro_batch} in a micro-batch, "
        f"{work.rows} rolled out at once, {'bf16' if work.bf16 else 'float32'}, {work.optimizer}, gradient "
        f"checkpointing {'on' if work.checkpointing else 'off'}.",
    ]
    adapter = max(planned.adapter_parameters for planned in found.ways.values())
    if adapter:
        lines.append(f"The adapter of lora and qlora has {adapter:,} parameters.")
    else:
        lines.append("Adapters are left out: install peft with `pip install ebft[peft]`.")
    loaded = [f"{bytes_ * found.parameters / GIB:,.0f} GiB" for bytes_ in (work.trained_bytes, work.number)]
    lines.append(
        f"A process that loads the whole model needs {loaded[0]} of its machine's memory, with lora {loaded[1]}."
    )
    lines.append(f"What fits leaves {ROOM:.0%} free for CUDA, communication and fragments.")
    return lines


def as_json(found: Plan) -> dict[str, Any]:
    """Everything, in bytes."""
    return {
        "model": found.model,
        "parameters": found.parameters,
        "gpus": found.gpus,
        "gpu_memory_bytes": found.gpu_memory_gib * GIB,
        "room": ROOM,
        "settings": asdict(found.work),
        "recipe_trains_by": found.chosen,
        "computed": True,
        "ways": {
            way: {
                "bytes": planned.memory.parts(),
                "stages": planned.memory.stages(),
                "peak": planned.memory.peak,
                "fits": planned.fits,
                "largest_per_device_train_batch_size": planned.largest_micro_batch,
                "largest_rollout_batch_size": planned.largest_rollout_batch,
                "adapter_parameters": planned.adapter_parameters,
            }
            for way, planned in found.ways.items()
        },
    }
