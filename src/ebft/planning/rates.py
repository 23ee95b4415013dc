"""How long a step takes, from steps that were timed on an H200 (benchmarks/results/step-h200-*.json).

A step is reckoned as 4.75 forward passes over its packed tokens, at 2 FLOPs per parameter and token: one to roll out,
3/4 of one for features, three for the update. Divided by the seconds that were measured, that gives a rate for each
size of model. For other GPUs it is scaled by what the vendors give as their peak.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

PASSES = 4.75
# Parameters, and TFLOP/s so reckoned, of whole models without gradient checkpointing; a test reads the files again.
MEASURED = ((134_515_008, 171.0), (1_235_814_400, 642.0), (1_543_714_304, 528.0))
# Of that rate with LoRA, and with gradient checkpointing: Qwen2.5-1.5B, one sequence at a time, before trees.
ADAPTER = 0.687
CHECKPOINTING = 0.573


@dataclass(frozen=True)
class Gpu:
    memory_gib: float
    peak: float  # dense bf16 TFLOP/s, by the vendor


GPUS = {
    "h200": Gpu(140, 989),
    "h100": Gpu(80, 989),
    "a100": Gpu(80, 312),
    "a100-40gb": Gpu(40, 312),
    "l40s": Gpu(48, 362),
    "a10": Gpu(24, 125),
    "l4": Gpu(24, 121),
    "rtx4090": Gpu(24, 165),
    "rtx3090": Gpu(24, 71),
}
TIMED_ON = "h200"


def step_seconds(
    active_parameters: int, packed_tokens: int, gpu: str, gpus: int, adapter: bool = False, checkpointing: bool = False
) -> float:
    """Seconds of a step over `packed_tokens` on all GPUs together; what they tell each other is not counted."""
    rate = _rate(active_parameters) * 1e12 * GPUS[gpu].peak / GPUS[TIMED_ON].peak * gpus
    rate *= (ADAPTER if adapter else 1.0) * (CHECKPOINTING if checkpointing else 1.0)
    return 2.0 * active_parameters * packed_tokens * PASSES / rate


def _rate(parameters: int) -> float:
    """Between the measured sizes by the logarithm of the size; outside them, that of the nearest."""
    (size, rate), *others = MEASURED
    if parameters <= size:
        return rate
    for larger, faster in others:
        if parameters <= larger:
            share = math.log(parameters / size) / math.log(larger / size)
            return rate + share * (faster - rate)
        size, rate = larger, faster
    return rate


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
