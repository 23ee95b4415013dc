"""`ebft plan`: whether a recipe fits on a GPU, the settings that would, and how long a step takes.

Of the model only config.json is read.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path

import yaml

from ebft import fetch
from ebft.config.recipe import declared, load_recipe, read_values
from ebft.config.settings import Parser, Values, default_of
from ebft.errors import ConfigError, first_line
from ebft.plan_memory import GIB, ROOM, Run, Shape
from ebft.runtime.messages import duration, print_table

# GiB, and the vendor's TFLOP/s in dense bf16.
GPUS = {"h200": (140, 989), "h100": (80, 989), "a100": (80, 312), "a100-40gb": (40, 312), "l40s": (48, 362)}
GPUS |= {"a10": (24, 125), "l4": (24, 121), "rtx4090": (24, 165), "rtx3090": (24, 71)}
# Of that rate, steps on an H200 reached (benchmarks/results/step-h200-*.json), counted as PASSES forward passes over
# packed tokens: by the size of the model, and of it with LoRA, and with gradient checkpointing.
PASSES, REACHED = 4.75, ((1.35e8, 0.17), (1.2e9, 0.55))
WITH_ADAPTER, WITH_CHECKPOINTING = 0.69, 0.57
# LoRA's best learning rate is about ten times that of the whole model (Schulman et al., "LoRA Without Regret", 2025).
ADAPTER_RATE = 10
_ROWS = 16  # sequences in a step, as in the paper, where the recipe does not say
_STEP = ("per_device_train_batch_size", "gradient_accumulation_steps")
_BATCHES = ("per_device_train_batch_size", "rollout_batch_size", "per_device_eval_batch_size")
# What a recommendation decides anew, and so does not take over from the recipe.
_DECIDED = [*_STEP, "rollout_batch_size", "bf16", "bf16_if_fast", "use_cpu"]
_DECIDED += ["gradient_checkpointing", "fsdp", "load_in_4bit"]
# Where they are not given: neither takes memory.
_STANDING_IN = {"dataset": "YOUR-DATA.jsonl", "output_dir": "runs/YOUR-RUN"}


def make_plan(given: Mapping[str, object], gpus: int, gpu_memory: float, gpu: str | None = None) -> Values:
    """What `--json` prints. given: the settings of a recipe; gpu_memory: of each GPU, in GiB."""
    defaults = {name: default_of(f) for name, f in declared().items()}
    values = defaults | load_recipe(None, {**_STANDING_IN, **given}).given

    def fits(run: Run) -> bool:
        return run.peak() <= (1 - ROOM) * gpu_memory * GIB

    features = _shape_of(values["feature_model"], "feature_model") if values["feature_model"] else None
    run = Run(_shape_of(values["model"], "model"), values, gpus, features)
    advised: Run | None = run
    if not (chosen := {*_STEP} & given.keys()) or not run.bf16 or not fits(run):
        start = run.but(**{name: defaults[name] for name in _DECIDED} | {"bf16": True})
        advised = _first_that_fits(start, run.rows_per_step // gpus if chosen else -(-_ROWS // gpus), fits)
        if advised and advised.adapted and not (run.adapted and "learning_rate" in given):
            advised = advised.but(learning_rate=float(f"{ADAPTER_RATE * values['learning_rate']:.6g}"))
    recipe = None
    if advised is not None:
        changed = {n for n, value in advised.settings.items() if value != defaults.get(n)} - _STANDING_IN.keys()
        recipe = _STANDING_IN | {n: v for n, v in advised.settings.items() if n in {*given, *_STEP, *changed}}
    plan = {"model": values["model"], "parameters": run.shape.parameters, "active": run.shape.active, "gpus": gpus}
    plan |= {"gpu": gpu, "gpu_bytes": gpu_memory * GIB, "settings": recipe, "recommended": None}
    for name, each in {"given": run, "recommended": advised}.items():
        if each is not None:
            stages = each.usual()
            plan[name] = {"strategy": each.strategy, "fits": fits(each), "seconds": gpu and _seconds(each, gpu)}
            plan[name] |= {"tokens": each.rows_per_step * each.of.context_length, "stages": stages}
            plan[name] |= {"usual": max(stages.values()), "peak": each.peak()}
    return plan


def _first_that_fits(start: Run, rows: int, fits: Callable[[Run], bool]) -> Run | None:
    """In the order of what is given up: the whole model before an adapter, an adapter before 4 bits; of each, one copy
    on every GPU before shards, and activations that are kept before ones that are computed again. With the largest
    batches that divide the `rows` of a step."""
    adapter = start if start.adapted else start.but(lora=True)
    parts = [n for n in range(rows, 0, -1) if rows % n == 0]
    numbers = dict.fromkeys(_BATCHES[:2], parts) | {_BATCHES[2]: [*range(start.of.per_device_eval_batch_size, 0, -1)]}
    ways = product((start, adapter, adapter.but(load_in_4bit=True)), (None, "full_shard"), (False, True))
    for way, fsdp, checkpointing in ways:
        run = way.but(fsdp=fsdp, gradient_checkpointing=checkpointing, **dict.fromkeys(_BATCHES, 1))
        if fits(run) and not (fsdp and (run.gpus == 1 or run.of.load_in_4bit)):
            for name in _BATCHES:
                run = run.but(**{name: next(n for n in numbers[name] if fits(run.but(**{name: n})))})
            return run.but(gradient_accumulation_steps=rows // run.of.per_device_train_batch_size)
    return None


def _seconds(run: Run, gpu: str) -> float:
    """Of a step on all GPUs together; what they tell each other is not counted."""
    (small, low), (large, high) = REACHED
    share = math.log(min(max(run.shape.active, small), large) / small) / math.log(large / small)
    rate = (low + share * (high - low)) * GPUS[gpu][1] * 1e12 * run.gpus
    rate *= (WITH_ADAPTER if run.adapted else 1) * (WITH_CHECKPOINTING if run.of.gradient_checkpointing else 1)
    return 2 * run.shape.active * PASSES * run.rows_per_step * run.packed / rate


def _shape_of(name: str, field: str) -> Shape:
    """By a model's config.json, in a folder or on the hub."""
    place = Path(fetch.resolve(name, field)).expanduser()
    try:
        if not place.is_dir():
            from huggingface_hub import hf_hub_download

            place = Path(hf_hub_download(name, "config.json")).parent
        return Shape(json.loads((place / "config.json").read_text(encoding="utf-8")))
    except (OSError, json.JSONDecodeError) as error:
        raise ConfigError(f"the config.json of {field}={name!r} cannot be read: {first_line(error)}") from None


def _print_report(plan: Values, tokens: float | None, file: str | None) -> None:
    total, gpus = plan["gpu_bytes"] / GIB, plan["gpus"]
    columns: dict[str, dict[str, float]] = {}
    active = "" if plan["active"] == plan["parameters"] else f" ({plan['active'] / 1e6:,.1f} of them for a token)"
    print(f"{plan['model']}: about {plan['parameters'] / 1e6:,.1f} million parameters{active}. Computed, not run.")
    for name, title in {"given": "As given", "recommended": f"Recommended for {gpus} x {total:g} GiB"}.items():
        if (run := plan[name]) is None or (columns and run == plan["given"]):
            continue
        columns[name] = run["stages"]
        usual, most = f"{run['usual'] / GIB:.1f}", f"{run['peak'] / GIB:.1f}"
        words = f"{title}: {run['strategy']}, {usual} of {total:g} GiB on each GPU"
        words += f" (at most {most}, where completions have nothing in common)" if usual != most else ""
        if run["seconds"]:
            whole, of = (tokens, "an epoch") if tokens else (1e6, "a million tokens of text")
            epoch = run["seconds"] * whole / run["tokens"]
            words += f", about {duration(run['seconds'])} a step and {duration(epoch)} {of}"
        fits = "it fits" if run["fits"] else f"it does not fit with {ROOM:.0%} left for CUDA and fragments"
        print(f"{words}: {fits}.")
    if plan["recommended"] is None:
        print("Nothing fits: a shorter context_length, fewer samples, more or larger GPUs.")
    else:
        place, launch = shlex.quote(file or "recipe.yaml"), f" --launch {gpus}" if gpus > 1 else ""
        print("", yaml.safe_dump(plan["settings"], sort_keys=False), sep="\n")
        print(f"{'Written to' if file else 'As'} {place}: ebft train --config {place}{launch}")
    print()
    rows = [("  " + stage, *(f"{of[stage] / GIB:.1f}" for of in columns.values())) for stage in columns["given"]]
    print_table([("GiB on each GPU", *columns), *rows])


def command(arguments: list[str]) -> int:
    usage = "(--config recipe.yaml | --model M) (--gpu h100 | --gpu-memory GIB) [--setting value ...]"
    parser = Parser("plan", "Whether a recipe fits on a GPU, the settings that would, and the time of a step.", usage)
    parser.add_settings("", declared().items(), hidden=declared())
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
    given = {**read_values(options.config), **options.settings}
    plan = make_plan(given, options.gpus, options.gpu_memory or GPUS[options.gpu][0], options.gpu)
    if options.output is not None and plan["settings"]:
        with Path(options.output).open("x", encoding="utf-8") as file:  # a new one
            yaml.safe_dump(plan["settings"], file, sort_keys=False)
    if options.json:
        print(json.dumps(plan, indent=1))
    else:
        _print_report(plan, options.tokens, options.output)
    return 0
