"""`ebft plan`: the memory of one GPU by part, for every strategy to train a recipe's model, and what would fit.

Only the model's configuration is read: a folder that holds nothing but config.json will do.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ebft.errors import ConfigError, first_line, how_to_install
from ebft.planning.memory import (
    GIB,
    ROOM,
    Memory,
    estimate,
    largest_eval_batch,
    largest_micro_batch,
    largest_rollout_batch,
)
from ebft.planning.rates import TIMED_ON
from ebft.planning.recommend import Recommendation, recommend, smallest
from ebft.planning.strategies import STRATEGIES, Strategy, strategy_of
from ebft.planning.workload import Workload
from ebft.runtime.messages import duration

if TYPE_CHECKING:  # torch and transformers are imported when there is a recipe to plan
    from ebft.config.recipe import Recipe
    from ebft.planning.model_shape import ModelShape

PAPER_ROWS = 16  # sequences in a step, where the recipe does not say
# LoRA's best learning rate was found to be about ten times that of the whole model (Schulman et al., "LoRA Without
# Regret", 2025); the large recipes with adapters take it as well.
ADAPTER_RATE = 10
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
    gpu: str | None = None  # its name among `rates.GPUS`, for times

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
    """A strategy with the settings as given."""

    work: Workload
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
    # Of each strategy that the GPUs allow, the settings that fit best, or where none fit those that need least.
    best: dict[Strategy, Recommendation | StrategyPlan]
    rows_per_step: int
    recommended: Recommendation | None  # None: nothing fits
    settings: dict[str, Any]  # of the recipe as it was given


def plan(recipe: Recipe, hardware: Hardware) -> Plan:
    from ebft import loading
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
        adapter, rebuilt = loading.count_adapter_weights(model, loading.peft_config(asked))
    works: dict[Strategy, Workload] = {}
    for strategy in STRATEGIES:
        if adapter or not strategy.adapter:  # else peft, which knows the adapter's size, is not installed
            works[strategy] = replace(work, adapter=adapter, rebuilt=rebuilt) if strategy.adapter else work
    strategies = {strategy: _planned(shape, this, strategy, hardware) for strategy, this in works.items()}
    rows = training.rows_per_step * hardware.gpus  # this process is one, the run will have one for each GPU
    if not {"per_device_train_batch_size", "gradient_accumulation_steps"} & recipe.given.keys():
        rows = max(PAPER_ROWS, hardware.gpus)
    adapter_rate: float | None = float(f"{ADAPTER_RATE * training.learning_rate:.6g}")
    if recipe.model.adapted and "learning_rate" in recipe.given:
        adapter_rate = None  # it was chosen for the adapter
    best: dict[Strategy, Recommendation | StrategyPlan] = {}
    for strategy, this in works.items():
        if not strategy.sharded or hardware.gpus > 1:
            fitting = recommend(shape, {strategy: this}, rows, hardware.gpus, hardware.room, adapter_rate)
            best[strategy] = fitting or _planned(shape, smallest(this), strategy, hardware)
    # An adapter, if that was asked for.
    allowed = [found for strategy, found in best.items() if strategy.adapter or not recipe.model.adapted]
    return Plan(
        recipe.model.model,
        shape.parameters,
        shape.active,
        hardware,
        work,
        strategy_of(recipe),
        strategies,
        best,
        rows,
        next((found for found in allowed if isinstance(found, Recommendation)), None),
        recipe.given,
    )


def _planned(shape: ModelShape, work: Workload, strategy: Strategy, hardware: Hardware) -> StrategyPlan:
    needed = estimate(shape, work, strategy)
    return StrategyPlan(
        work=work,
        memory=needed,
        fits=needed.peak <= hardware.room,
        largest_micro_batch=largest_micro_batch(shape, work, strategy, hardware.room),
        largest_rollout_batch=largest_rollout_batch(shape, work, strategy, hardware.room),
        largest_eval_batch=largest_eval_batch(shape, work, strategy, hardware.room) if work.eval_rows else None,
        adapter_parameters=work.adapter,
    )


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
    """GiB on each GPU, or MiB if nothing needs a GiB: the recipe as given, and every strategy with the settings that
    fit best, or where none fit, with those that need least."""
    gpus = found.hardware.gpus
    columns: dict[str, Recommendation | StrategyPlan] = {}
    if (mine := found.strategies.get(found.chosen)) is not None:
        columns[f"{found.chosen.title(gpus)} (as given)"] = mine
    for strategy, best in found.best.items():
        name = strategy.title(gpus)
        columns[f"{name} (recommended)" if best is found.recommended else name] = best
    works, memories = [c.work for c in columns.values()], [c.memory for c in columns.values()]
    unit, size = ("MiB", 2**20) if max(m.peak for m in memories) < GIB else ("GiB", GIB)

    def shown(values: Iterable[float]) -> list[str]:
        return [f"{value / size:.1f}" for value in values]

    def fits(column: Recommendation | StrategyPlan) -> str:
        if column.memory.peak <= found.hardware.room:
            return "yes"
        return "no" if column is mine else "no setting does"

    evaluates = found.work.eval_rows > 0
    titles = {part: title for part, title in PARTS.items() if evaluates or part != "evaluation"}
    return [
        (f"{unit} on each GPU", *columns),
        ("fits", *map(fits, columns.values())),
        ("with per_device_train_batch_size", *(str(work.micro_batch) for work in works)),
        ("with rollout_batch_size", *(str(work.rows) for work in works)),
        *([("with per_device_eval_batch_size", *(str(work.eval_rows) for work in works))] if evaluates else []),
        ("with gradient_checkpointing", *("yes" if work.checkpointing else "no" for work in works)),
        ("computed in", *("bf16" if work.bf16 else "float32" for work in works)),
        ("",) * (1 + len(works)),
        *((title, *shown(getattr(m, part) for m in memories)) for part, title in titles.items()),
        ("",) * (1 + len(works)),
        *((f"during {STAGES[stage]}", *shown(m.stages()[stage] for m in memories)) for stage in memories[0].stages()),
        ("peak", *shown(m.peak for m in memories)),
    ]


def recipe_lines(found: Plan, to_replace: Collection[str] = ()) -> list[str]:
    """The recommended recipe, as YAML. to_replace: settings that nobody gave, and that stand for the user's own."""
    if found.recommended is None:
        raise ConfigError("nothing fits, so there is no recipe to write")
    settings = {name: value for name, value in found.settings.items() if name not in _CHOSEN_HERE}
    lines = yaml.safe_dump({**settings, **found.recommended.settings}, sort_keys=False).strip().splitlines()
    lines = [f"{line}  # replace by yours" if line.partition(":")[0] in to_replace else line for line in lines]
    if "learning_rate" not in settings and "gamma" not in settings:
        lines.append(
            "# By default learning_rate is 1e-06 and gamma 0, as in the paper; the recipe little-data has 5e-05 and 0.3"
        )
    return lines


def recommendation(
    found: Plan, tokens: float | None = None, to_replace: Collection[str] = (), file: str | None = None
) -> list[str]:
    """What to do, ready to paste, and what the recipe as it is would do.

    tokens: of the training text; to_replace: as `recipe_lines` takes it; file: where the recipe has been written.
    """
    hardware, advised, mine = found.hardware, found.recommended, found.strategies.get(found.chosen)
    gpus = f"{hardware.gpus} GPU{'s' if hardware.gpus > 1 else ''} of {hardware.gpu_memory_gib:g} GiB"
    lines = []
    if advised is None:
        lines.append(f"Nothing fits on {gpus}: a shorter context_length, fewer samples, more or larger GPUs.")
    else:
        needs = f"{advised.memory.peak / GIB:.1f} of {hardware.gpu_memory_gib:g} GiB on each GPU"
        strategy = advised.strategy.title(hardware.gpus)
        lines.append(f"Recommended for {gpus}: {strategy}, {needs}{_times(found, advised, tokens)}.")
        launch = f" --launch {hardware.gpus}" if hardware.gpus > 1 else ""
        lines += ["", *recipe_lines(found, to_replace), ""]
        place = shlex.quote(file or "recipe.yaml")
        lines.append(f"{'Written to' if file else 'As'} {place}: ebft train --config {place}{launch}")
        if rate := advised.settings.get("learning_rate"):
            lines.append(
                f"Its learning_rate of {rate:g} is {ADAPTER_RATE} times that of the whole model "
                f"({rate / ADAPTER_RATE:g}), as adapters usually need."
            )
    if mine is not None:
        verdict = "fits" if mine.fits else "does not fit"
        peak = f"{mine.memory.peak / GIB:.1f} GiB on each GPU at its peak"
        if not mine.fits and mine.memory.peak < hardware.gpu_memory_gib * GIB:
            peak += f", which leaves less than {ROOM:.0%} free"
        lines += ["", f"As given ({found.chosen.title(hardware.gpus)}), it {verdict}: {peak}."]
    return lines


# What a recommendation decides anew, and so does not take over from the recipe.
_CHOSEN_HERE = """bf16 bf16_if_fast per_device_train_batch_size gradient_accumulation_steps rollout_batch_size use_cpu
    gradient_checkpointing fsdp load_in_4bit""".split()  # noqa: SIM905


def _times(found: Plan, advised: Recommendation, tokens: float | None) -> str:
    gpu = found.hardware.gpu
    if gpu is None:
        return ""  # --gpu gives the times
    seconds = advised.seconds(found.active, gpu, found.hardware.gpus)
    each = tokens if tokens is not None else 1e6
    whole = seconds * each / (found.work.context * advised.rows_per_step)
    an_epoch = "an epoch" if tokens is not None else "a million tokens of text"
    told = "measured" if gpu == TIMED_ON else f"scaled from an {TIMED_ON.upper()}"
    apart = ", without communication" if found.hardware.gpus > 1 else ""
    return f", about {duration(seconds)} a step and {duration(whole)} {an_epoch} (rates {told}{apart})"


def introduction(found: Plan) -> list[str]:
    work, gpus = found.work, found.hardware.gpus
    active = "" if found.active == found.parameters else f" ({found.active:,} of them for a token)"
    lines = [
        f"{found.model}: {found.parameters:,} parameters{active}, {gpus} GPU{'s' if gpus > 1 else ''} of "
        f"{found.hardware.gpu_memory_gib:g} GiB. Computed, not run.",
        f"As given: {_in_words(work)}.",
    ]
    if found.recommended is not None:
        lines.append(f"Recommended: {_in_words(found.recommended.work)}.")
    if work.eval_rows:
        lines.append(
            f"Evaluation: {work.eval_rows} at once, packed to {work.evaluation.packed:,} tokens with "
            f"{work.eval_samples} samples from every anchor."
        )
    adapter = max(planned.adapter_parameters for planned in found.strategies.values())
    if adapter:
        lines.append(f"The adapter of lora and qlora has {adapter:,} parameters.")
    else:
        lines.append(f"Adapters are left out: they need peft; {how_to_install('peft')}.")
    loaded = [f"{bytes_ * found.parameters / GIB:,.0f} GiB" for bytes_ in (work.trained_bytes, work.compute_bytes)]
    lines.append(
        f"A process that loads the whole model needs {loaded[0]} of its machine's memory, with lora {loaded[1]}."
    )
    lines.append(f"What fits leaves {ROOM:.0%} free for CUDA, communication and fragments.")
    mine = found.strategies.get(found.chosen)
    if mine is not None and mine.memory.peak_stage == "evaluation":
        lines.append("As given, the peak is evaluation's; a smaller per_device_eval_batch_size lowers it.")
    return lines


def _in_words(work: Workload) -> str:
    return (
        f"packed sequences of {work.packed:,} tokens ({work.context:,} of text), {work.micro_batch} in a micro-batch, "
        f"{work.rows} rolled out at once, {'bf16' if work.bf16 else 'float32'}, {work.optimizer}, gradient "
        f"checkpointing {'on' if work.checkpointing else 'off'}"
    )


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
        "recommended": None
        if found.recommended is None
        else {
            "strategy": found.recommended.strategy.name,
            "settings": found.recommended.settings,
            "peak": found.recommended.memory.peak,
            "rows_per_step": found.recommended.rows_per_step,
            "seconds_per_step": None
            if found.hardware.gpu is None
            else found.recommended.seconds(found.active, found.hardware.gpu, found.hardware.gpus),
        },
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
                "best": _best_as_json(found.best.get(strategy)),
            }
            for strategy, planned in found.strategies.items()
        },
    }


def _best_as_json(best: Recommendation | StrategyPlan | None) -> dict[str, Any] | None:
    """The settings that fit best; None if none fit."""
    return {"settings": best.settings, "peak": best.memory.peak} if isinstance(best, Recommendation) else None
