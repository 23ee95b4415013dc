"""The result of step.py: the fields of its JSON, and the table that it prints."""

from __future__ import annotations

import platform
from dataclasses import asdict
from typing import Any

import torch
import transformers

from iteration_time import PHASES, Measured, summarize
from provenance import device_name
from reference_implementation import FEATURE_PASSES
from shapes import SIZES
from step_settings import TEMPERATURE, Settings


def describe_settings(settings: Settings) -> dict[str, Any]:
    layout, b = settings.layout, settings.sequences
    model = SIZES[settings.size].meta_model()
    # The reference implementation has a copy of the context for every sample.
    reference_length = layout.context_length + layout.num_anchors * layout.horizon
    return {
        "settings": asdict(settings) | {"temperature": TEMPERATURE, "released_feature_passes": FEATURE_PASSES},
        "shape": {
            "parameters": sum(p.numel() for p in model.parameters()),
            "anchors": layout.num_anchors,
            "packed_tokens": b * layout.packed_length,
            "released_tokens": b * layout.samples * reference_length,
        },
    }


def describe_machine(settings: Settings, load_average: float) -> dict[str, Any]:
    return {
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "machine": {
            "device": device_name(settings.device),
            "threads": torch.get_num_threads(),
            "load_average": load_average,
        },
    }


def describe_measurements(
    measured: dict[str, Measured], flops: dict[str, float], packed_tokens: int, memory: dict[str, int]
) -> dict[str, Any]:
    """`memory`: peak bytes of each implementation, if they were measured apart from the time."""
    seconds = {name: summarize(m.runs) for name, m in measured.items()}
    memory = memory or {name: m.peak_bytes for name, m in measured.items()}
    median = {name: {phase: value["median"] for phase, value in phases.items()} for name, phases in seconds.items()}
    rate = measured["packed"].matrix_rate
    result: dict[str, Any] = {
        "seconds": seconds,
        "warmup_seconds": {name: m.warmup_seconds for name, m in measured.items()},
        "tokens_per_second": packed_tokens / median["packed"]["iteration"],
        "flops": flops,
        "matrix_rate": rate,
        "utilization": {phase: count / rate / median["packed"][phase] for phase, count in flops.items()},
        "peak_memory_bytes": memory,
    }
    if measured["packed"].work is not None:
        result["work"] = asdict(measured["packed"].work)
    if "untreed" in measured:
        result["speed_up_by_trees"] = {
            phase: median["untreed"][phase] / median["packed"][phase] for phase in (*PHASES, "iteration")
        }
    if "released" in measured:
        result["speed_up"] = {
            phase: median["released"][phase] / median["packed"][phase] for phase in (*PHASES, "iteration")
        }
        result["memory_share"] = memory["packed"] / memory["released"]
    return result


def print_table(result: dict[str, Any]) -> None:
    seconds, memory = result["seconds"], result["peak_memory_bytes"]
    machine, settings = result["machine"], result["settings"]
    compared = "released" in seconds
    print(f"{settings['size']} on {machine['device']}, {machine['threads']} threads, {settings['dtype']}")
    print(f"{'':16}" + "".join(f"{name:>26}" for name in seconds) + ("     ratio" if compared else ""))
    for phase in seconds["packed"]:
        row = f"{phase:16}"
        for phases in seconds.values():
            spread = f"({phases[phase]['min']:.3f}-{phases[phase]['max']:.3f})"
            row += f"{phases[phase]['median']:.3f} s {spread}".rjust(26)
        if compared and phase in result["speed_up"]:
            row += f"{result['speed_up'][phase]:9.2f}x"
        print(row)
    unit, name = (1e12, "TFLOP") if result["matrix_rate"] > 1e13 else (1e9, "GFLOP")
    for phase, share in result["utilization"].items():
        print(f"{phase:16}{result['flops'][phase] / unit:10.1f} {name}, {share:.0%} of the measured matrix rate")
    print(f"matrix rate {result['matrix_rate'] / unit:.1f} {name}/s; {result['tokens_per_second']:.0f} tokens/s")
    warmup = ", ".join(f"{name} {value:.1f} s" for name, value in result["warmup_seconds"].items())
    print(f"warm-up: {warmup}")
    row = f"{'peak memory':16}" + "".join(f"{value / 2**20:22.0f} MiB" for value in memory.values())
    print(row + (f"{1 / result['memory_share']:9.2f}x" if compared else ""))
    if "speed_up_by_trees" in result:
        print(f"trees make an iteration {result['speed_up_by_trees']['iteration']:.2f} times faster")
    if compared:
        print(
            f"the packed implementation is {result['speed_up']['iteration']:.2f} times faster than the reference "
            f"implementation, with {result['memory_share']:.2f} of its peak memory"
        )
        differences = result["equality"]["relative_differences"]
        shown = ", ".join(f"{name} {value:.1e}" for name, value in differences.items())
        print(f"largest relative differences: {shown}")
