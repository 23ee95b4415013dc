"""`ebft plan`: whether a recipe fits on a GPU, the settings that would, and how long a step takes.

Of the model only config.json is read; torch and transformers are not imported.
"""

from __future__ import annotations

import ast
import json
import math
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, fields, replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from ebft import fetch
from ebft.config.data import DataConfig, ModelConfig, RunningConfig
from ebft.config.method import MethodConfig
from ebft.config.recipe import check_given, read_values
from ebft.config.settings import Parser, default_of, option, types_of
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
_SECTIONS = (ModelConfig, DataConfig, MethodConfig, RunningConfig)
# Of transformers' own settings, those that take memory, with its defaults.
_THEIRS = {
    "gradient_accumulation_steps": 1,
    "bf16": False,
    "use_cpu": False,
    "gradient_checkpointing": False,
    "optim": "adamw_torch_fused",
}
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
        rate *= WITH_ADAPTER if run.adapted else 1
        rate *= WITH_CHECKPOINTING if run.settings["gradient_checkpointing"] else 1
        return 2 * run.shape.active * PASSES * self.rows_per_step * run.packed / rate

    def fits(self, run: Run) -> bool:
        return run.peak <= (1 - ROOM) * self.gpu_bytes


def known_settings() -> dict[str, Any]:
    """The type of every setting of `ebft train`; of transformers' own, which its source lists, any where memory does
    not depend on it."""
    source = Path(str(find_spec("transformers").origin)).with_name("training_args.py")  # type: ignore[union-attr]
    body = ast.parse(source.read_text(encoding="utf-8")).body
    (arguments,) = [node for node in body if isinstance(node, ast.ClassDef) and node.name == "TrainingArguments"]
    theirs = [node.target.id for node in arguments.body if isinstance(node, ast.AnnAssign)]  # type: ignore[union-attr]
    own = {name: kind for section in _SECTIONS for name, kind in types_of(section).items()}
    return {**dict.fromkeys(theirs, Any), **{name: type(value) for name, value in _THEIRS.items()}, **own}


def make_plan(given: Mapping[str, Any], gpus: int, gpu_memory: float, gpu: str | None = None) -> Plan:
    """given: the settings of a recipe; gpu_memory: of each GPU, in GiB."""
    typed = check_given({**_STANDING_IN, **given}, known_settings(), "train")
    for section in _SECTIONS:  # which check their values
        section(**{name: typed[name] for name in types_of(section) if name in typed})
    defaults: dict[str, Any] = _THEIRS | {f.name: default_of(f) for section in _SECTIONS for f in fields(section)}
    values = defaults | typed
    rows = values["per_device_train_batch_size"] * values["gradient_accumulation_steps"]  # of a GPU
    if min(rows, gpus) < 1:
        raise ConfigError("gradient_accumulation_steps and --gpus must be at least 1")
    features = values["feature_model"] and Shape.of(_config(values["feature_model"], "feature_model"))
    run = Run(Shape.of(_config(values["model"], "model")), values, gpus, features)
    chosen = bool({"per_device_train_batch_size", "gradient_accumulation_steps"} & given.keys())
    if not chosen:
        rows = -(-_ROWS // gpus)
    plan = Plan(run, rows * gpus, None, _STANDING_IN | {name: typed[name] for name in given}, gpu_memory * GIB, gpu)
    if chosen and run.bf16 and plan.fits(run):
        return replace(plan, recommended=run)
    start = run.but(**{name: defaults[name] for name in _DECIDED} | {"bf16": True})
    for candidate in _candidates(start):
        if (found := _largest_batches(candidate, rows, plan.fits)) is None:
            continue
        changed = {name: value for name, value in found.settings.items() if value != start.settings[name]}
        if found.adapted and not (run.adapted and "learning_rate" in given):
            changed["learning_rate"] = float(f"{ADAPTER_RATE * values['learning_rate']:.6g}")
        kept = {name: value for name, value in plan.settings.items() if name not in _DECIDED}
        always = ("bf16", "per_device_train_batch_size", "gradient_accumulation_steps", "rollout_batch_size")
        return replace(plan, recommended=found, settings=kept | {n: found.settings[n] for n in always} | changed)
    return plan


def _candidates(start: Run) -> Iterator[Run]:
    """In the order of what they give up: the whole model before an adapter, an adapter before 4 bits; of each, one copy
    on every GPU before shards, and activations that are kept before ones that are computed again."""
    adapter = start if start.adapted else start.but(lora=True)
    ways = ([] if start.adapted else [start]) + [adapter, adapter.but(load_in_4bit=True)]
    for way, fsdp, checkpointing in product(ways, (None, "full_shard"), (False, True)):
        if fsdp is None or (start.gpus > 1 and not way.settings["load_in_4bit"]):
            yield way.but(fsdp=fsdp, gradient_checkpointing=checkpointing)


def _largest_batches(run: Run, rows: int, fits: Callable[[Run], bool]) -> Run | None:
    """Of `rows` sequences in a step, how many are trained on, rolled out and evaluated at once; None: not even one."""
    parts = [n for n in range(rows, 0, -1) if rows % n == 0]
    every = {
        "per_device_train_batch_size": parts,
        "rollout_batch_size": parts,
        "per_device_eval_batch_size": range(run.settings["per_device_eval_batch_size"], 0, -1),
    }
    least = run.but(**dict.fromkeys(every, 1))
    if not fits(least):
        return None
    found = {name: next(n for n in numbers if fits(least.but(**{name: n}))) for name, numbers in every.items()}
    return run.but(**found, gradient_accumulation_steps=rows // found["per_device_train_batch_size"])


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
        words = f"{run.strategy}, at most {run.peak / GIB:.1f} of {total:g} GiB on each GPU"
        if (usual := f"{run.usual / GIB:.1f}") != f"{run.peak / GIB:.1f}":
            words += f" ({usual} where completions agree as usual)"
        if (seconds := plan.seconds(run)) is not None:
            steps = (tokens or 1e6) / (run.settings["context_length"] * plan.rows_per_step)
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
    found: dict[str, Any] = {"parameters": plan.given.shape.parameters, "gpus": plan.given.gpus, "gpu": plan.gpu}
    found |= {"gpu_bytes": plan.gpu_bytes, "rows_per_step": plan.rows_per_step, "settings": plan.settings}
    for name, run in {"given": plan.given, "recommended": plan.recommended}.items():
        found[name] = None
        if run is not None:
            found[name] = {"strategy": run.strategy, "fits": plan.fits(run), "stages": run.stages()}
            found[name] |= {"peak": run.peak, "usual": run.usual}
    return json.dumps(found, indent=1)


def command(arguments: list[str]) -> int:
    usage = "(--config recipe.yaml | --model M) (--gpu h100 | --gpu-memory GIB) [--setting value ...]"
    text = "Whether a recipe fits on a GPU, the settings that would, and how long a step takes."
    parser = Parser("plan", text, usage)
    own: dict[str, Field[Any]] = {f.name: f for section in _SECTIONS for f in fields(section)}
    flags = {name: own[name] if name in own else option(None, "") for name in known_settings()}
    parser.add_settings("", flags.items(), hidden=flags)
    parser.add_argument("--config", metavar="F", help="a YAML file, or the name of a recipe that comes with ebft")
    parser.add_argument("--gpus", type=int, default=1, metavar="N", help="processes, one on each GPU [1]")
    parser.add_argument("--gpu", type=str.lower, choices=GPUS, metavar="NAME", help=", ".join(GPUS))
    parser.add_argument("--gpu-memory", type=float, metavar="GIB", help="of each GPU, without its name or instead")
    parser.add_argument("--tokens", type=float, metavar="N", help="of the training text, for the time of an epoch")
    parser.add_argument("--output", metavar="F", help="also write the recommended recipe to this new file")
    parser.add_argument("--json", action="store_true", help="everything in bytes, for programs")
    options = parser.parse_args(arguments)
    if options.gpu is None and options.gpu_memory is None:
        raise ConfigError(f"ebft plan needs --gpu, one of {', '.join(GPUS)}, or --gpu-memory with a number")
    if options.output is not None and Path(options.output).exists():
        raise ConfigError(f"--output writes a new file: {options.output} is there already")
    given = {**(read_values(options.config) if options.config else {}), **options.settings}
    memory = GPUS[options.gpu][0] if options.gpu_memory is None else options.gpu_memory
    plan = make_plan(given, options.gpus, memory, options.gpu)
    if options.output is not None:
        Path(options.output).write_text(recipe_text(plan), encoding="utf-8")
    print(as_json(plan) if options.json else report(plan, options.tokens, options.output))
    return 0


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
