"""`ebft plan`: whether a recipe fits on a GPU, the settings that would, and how long a step takes.

Of the model only config.json is read.
"""

from __future__ import annotations

import json
import math
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from ebft import fetch
from ebft.config.recipe import load_recipe, sections
from ebft.config.settings import default_of
from ebft.errors import ConfigError, first_line
from ebft.plan_memory import GIB, ROOM, Run, Shape
from ebft.runtime.messages import duration

# GiB, and the vendor's TFLOP/s in dense bf16.
GPUS = {
    "h200": (140, 989),
    "h100": (80, 989),
    "a100": (80, 312),
    "a100-40gb": (40, 312),
    "l40s": (48, 362),
    "a10": (24, 125),
    "l4": (24, 121),
    "rtx4090": (24, 165),
    "rtx3090": (24, 71),
}
# Of that rate, steps on an H200 reached (benchmarks/results/step-h200-*.json), counted as PASSES forward passes over
# packed tokens: by the size of the model, and of it with LoRA, and with gradient checkpointing.
PASSES = 4.75
REACHED = ((1.35e8, 0.17), (1.2e9, 0.55))
WITH_ADAPTER, WITH_CHECKPOINTING = 0.69, 0.57
# LoRA's best learning rate was found to be about ten times that of the whole model (Schulman et al., "LoRA Without
# Regret", 2025).
ADAPTER_RATE = 10
_ROWS = 16  # sequences in a step, as in the paper, where the recipe does not say
# What a recommendation decides anew, and so does not take over from the recipe.
_DECIDED = {"bf16", "bf16_if_fast", "use_cpu", "per_device_train_batch_size", "gradient_accumulation_steps"}
_DECIDED |= {"rollout_batch_size", "gradient_checkpointing", "fsdp", "load_in_4bit"}
_STANDING_IN = {"dataset": "my.jsonl", "output_dir": "runs/mine"}  # where they are not given: neither takes memory


@dataclass(frozen=True)
class Plan:
    given: Run
    rows_per_step: int
    recommended: Run | None  # None: nothing fits
    settings: dict[str, Any]  # of the recommended run, as a recipe
    gpu_bytes: float
    gpu: str | None

    def seconds(self, run: Run) -> float | None:
        """Of a step on all GPUs together; what they tell each other is not counted."""
        if self.gpu is None:
            return None
        (small, low), (large, high) = REACHED
        share = math.log(min(max(run.shape.active, small), large) / small) / math.log(large / small)
        rate = (low + share * (high - low)) * GPUS[self.gpu][1] * 1e12 * run.gpus
        rate *= (WITH_ADAPTER if run.adapter else 1) * (WITH_CHECKPOINTING if run.checkpointing else 1)
        return 2 * run.shape.active * PASSES * self.rows_per_step * run.packed / rate

    def fits(self, run: Run) -> bool:
        return run.peak <= (1 - ROOM) * self.gpu_bytes


def make_plan(given: Mapping[str, Any], gpus: int, gpu_memory: float, gpu: str | None = None) -> Plan:
    """given: the settings of a recipe; gpu_memory: of each GPU, in GiB."""
    typed = load_recipe(None, {**_STANDING_IN, **given}).given
    defaults = {f.name: default_of(f) for section in sections() for f in fields(section) if f.init}
    values = {**defaults, **typed}
    run = _run(values, Shape.of(_config(values["model"], "model")), gpus)
    rows = values["per_device_train_batch_size"] * values["gradient_accumulation_steps"]  # of a GPU
    chosen = bool({"per_device_train_batch_size", "gradient_accumulation_steps"} & given.keys())
    if not chosen:
        rows = -(-_ROWS // gpus)
    settings = _STANDING_IN | {name: typed.get(name, value) for name, value in given.items()}
    plan = Plan(run, rows * gpus, None, settings, gpu_memory * GIB, gpu)
    if chosen and run.bf16 and plan.fits(run):
        return replace(plan, recommended=run)
    for candidate in _candidates(values, run):
        if (found := _largest_batches(candidate, rows, plan.fits)) is None:
            continue
        kept = {name: value for name, value in settings.items() if name not in _DECIDED}
        kept |= {"bf16": True, "per_device_train_batch_size": found.micro_batch}
        kept |= {"gradient_accumulation_steps": rows // found.micro_batch, "rollout_batch_size": found.rows}
        if found.eval_rows < run.eval_rows:
            kept["per_device_eval_batch_size"] = found.eval_rows
        if found.checkpointing:
            kept["gradient_checkpointing"] = True
        if found.adapter and not run.adapter:
            kept["lora"] = True
        if found.adapter and not (run.adapter and "learning_rate" in given):
            kept["learning_rate"] = float(f"{ADAPTER_RATE * values['learning_rate']:.6g}")
        if found.four_bit:
            kept["load_in_4bit"] = True
        if found.sharded:
            kept["fsdp"] = "full_shard"
        return replace(plan, recommended=found, settings=kept)
    return plan


def _run(values: Mapping[str, Any], shape: Shape, gpus: int) -> Run:
    """As the recipe has it."""
    adapted, context = values["lora"] or values["peft"] is not None, values["context_length"]
    bf16 = values["bf16"] or values["bf16_if_fast"]
    validates = values["validation_dataset"] is not None or values["validation_split"] > 0
    batch = values["per_device_train_batch_size"]
    return Run(
        shape,
        micro_batch=batch,
        rows=values["rollout_batch_size"] or batch * values["gradient_accumulation_steps"],
        context=context,
        anchors=1 if values["anchors"] == "answer_start" else (context - values["horizon"]) // values["stride"],
        samples=values["samples"],
        horizon=values["horizon"],
        eval_rows=values["per_device_eval_batch_size"] if validates else 0,  # before and after training at least
        eval_samples=values["eval_samples"] or values["samples"],
        bf16=bf16,
        trained_bytes=4 if values["model_dtype"] == "float32" else 2,
        truth=values["gamma"] != 0,
        checkpointing=values["gradient_checkpointing"],
        optimizer=values["optim"],
        frozen=_frozen(values, shape, adapted),
        frozen_bytes=4 if values["feature_source"] == "average" or not bf16 else 2,
        adapter=_adapter(values, shape) if adapted else 0,
        four_bit=values["load_in_4bit"],
        sharded=values["fsdp"] not in (None, False, "", "none"),
        gpus=gpus,
    )


def _frozen(values: Mapping[str, Any], shape: Shape, adapted: bool) -> int:
    """Weights of the feature network, and of a reference model. With an adapter both are the model without it."""
    taps = [int(tap) if tap > 1 else tap for tap in values["feature_layers"]]
    if values["feature_model"] is not None:
        features = Shape.of(_config(values["feature_model"], "feature_model")).below(taps)
    else:
        features = 0 if adapted and values["feature_source"] in ("auto", "adapter_off") else shape.below(taps)
    return features + (shape.parameters if values["kl_weight"] and not adapted else 0)


def _adapter(values: Mapping[str, Any], shape: Shape) -> int:
    """As of LoRA on all matrices: any adapter weighs little beside the rest."""
    return values["lora_r"] * shape.adapter


def _config(name: str, field: str) -> dict[str, Any]:
    """What is in a model's config.json: in a folder, or on the hub."""
    fetch.check_there(name, field)
    place = Path(fetch.resolve(name, field)).expanduser()
    try:
        if not place.is_dir():
            from huggingface_hub import hf_hub_download

            place = Path(hf_hub_download(name, "config.json")).parent
        return json.loads((place / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"the config.json of {field}={name!r} cannot be read: {first_line(error)}") from None


def _candidates(values: Mapping[str, Any], run: Run) -> Iterator[Run]:
    """In the order of what they give up: the whole model before an adapter, an adapter before 4 bits; of each, one copy
    on every GPU before shards, and activations that are kept before ones that are computed again."""
    whole = replace(run, bf16=True, frozen_bytes=4 if values["feature_source"] == "average" else 2)
    frozen = _frozen(values, run.shape, adapted=True)
    adapter = replace(whole, adapter=_adapter(values, run.shape), frozen=frozen, four_bit=False)
    ways = ([] if run.adapter else [whole]) + [adapter, replace(adapter, four_bit=True)]
    for way, sharded, checkpointing in product(ways, (False, True), (False, True)):
        if not sharded or (run.gpus > 1 and not way.four_bit):
            yield replace(way, sharded=sharded, checkpointing=checkpointing)


def _largest_batches(run: Run, rows: int, fits: Callable[[Run], bool]) -> Run | None:
    """Of `rows` sequences in a step, how many are trained on, rolled out and evaluated at once; None: not even one."""
    least = replace(run, micro_batch=1, rows=1, eval_rows=min(1, run.eval_rows))
    if not fits(least):
        return None
    parts = [n for n in range(rows, 0, -1) if rows % n == 0]
    return replace(
        run,
        micro_batch=next(n for n in parts if fits(replace(least, micro_batch=n))),
        rows=next(n for n in parts if fits(replace(least, rows=n))),
        eval_rows=next((n for n in range(run.eval_rows, 0, -1) if fits(replace(least, eval_rows=n))), 0),
    )


def recipe_text(plan: Plan) -> str:
    """The recommended recipe, as YAML. What nobody gave and stands for the user's own is marked."""
    if plan.recommended is None:
        raise ConfigError("nothing fits, so there is no recipe to write")
    marks = {f"{name}: {value}" for name, value in _STANDING_IN.items()}
    lines = yaml.safe_dump(plan.settings, sort_keys=False).splitlines()
    return "".join(f"{line}  # replace by yours\n" if line in marks else f"{line}\n" for line in lines)


def report(plan: Plan, tokens: float | None = None, file: str | None = None) -> str:
    """Whether the recipe fits, the one to train by, and both by stages. file: where it has been written."""
    given, advised, total = plan.given, plan.recommended, plan.gpu_bytes / GIB
    gpus = f"{given.gpus} GPU{'s' if given.gpus > 1 else ''} of {total:g} GiB"
    shape = given.shape
    active = "" if shape.active == shape.parameters else f" ({shape.active:,} of them for a token)"

    def told(run: Run) -> str:
        words = f"{run.strategy}, {run.peak / GIB:.1f} of {total:g} GiB on each GPU"
        if (seconds := plan.seconds(run)) is not None:
            steps = (tokens or 1e6) / (run.context * plan.rows_per_step)
            of = "an epoch" if tokens else "a million tokens of text"
            words += f", about {duration(seconds)} a step and {duration(seconds * steps)} {of}"
        return words

    fits = "it fits" if plan.fits(given) else f"it does not fit, with {ROOM:.0%} left free for CUDA and fragments"
    lines = [
        f"{plan.settings.get('model', 'The model')}: {shape.parameters:,} parameters{active}. Computed, not run.",
        f"As given: {told(given)}: {fits}.",
    ]
    columns = {"as given": given}
    if advised is None:
        lines.append(f"Nothing fits on {gpus}: a shorter context_length, fewer samples, more or larger GPUs.")
    else:
        if advised is not given:
            columns["recommended"] = advised
            lines.append(f"Recommended for {gpus}: {told(advised)}.")
        place, launch = shlex.quote(file or "recipe.yaml"), f" --launch {given.gpus}" if given.gpus > 1 else ""
        lines += ["", recipe_text(plan)]
        lines += [f"{'Written to' if file else 'As'} {place}: ebft train --config {place}{launch}"]
    stages = {name: run.stages() for name, run in columns.items()}
    rows = [("GiB on each GPU", *stages)]
    rows += [(f"  {stage}", *(f"{of[stage] / GIB:.1f}" for of in stages.values())) for stage in given.stages()]
    lines += ["", *("".join(f"{cell:<20}" for cell in row).rstrip() for row in rows)]
    return "\n".join(lines)


def as_json(plan: Plan) -> str:
    """Everything, in bytes."""
    runs = {"given": plan.given, "recommended": plan.recommended}
    known = {
        name: run and {"strategy": run.strategy, "stages": run.stages(), "peak": run.peak, "fits": plan.fits(run)}
        for name, run in runs.items()
    }
    return json.dumps({**asdict(plan), **known, "parameters": plan.given.shape.parameters}, indent=1)


def cpu_seconds(flops: float, bf16: bool = False) -> float:
    """What this machine's CPU takes at least: as long as for products of matrices, the best that training can do."""
    import torch

    matrix = torch.ones(1024, 1024, dtype=torch.bfloat16 if bf16 else torch.float32)
    matrix @ matrix  # the first one sets threads up
    began, products = time.perf_counter(), 0
    while (took := time.perf_counter() - began) < 0.3:
        matrix @ matrix
        products += 1
    return flops * took / (products * 2.0 * len(matrix) ** 3)
