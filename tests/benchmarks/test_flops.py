"""Counted operations against torch's count of what runs, and against the committed results."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import step
from flops import count_flops
from iteration_time import Run
from packed_implementation import PackedImplementation
from packed_work import Work, work_of
from shapes import SIZES
from step_settings import Settings, parse_arguments

RESULTS = {
    file.stem: result
    for file in sorted((Path(step.__file__).parent / "results").glob("step-*.json"))
    if "flops" in (result := json.loads(file.read_text()))  # the oldest were measured before operations were counted
}


@pytest.mark.parametrize("more", ["--no-trees", "--no-trees --lora", "", "--sharing", "--sharing --lora"])
def test_counted_operations_are_those_of_the_products(more: str) -> None:
    """The counts leave out attention to masked pairs, which a dense product computes all the same, so they may be
    lower than torch's, by no more than that."""

    def product(_: Any, a: Any, b: Any, **kwargs: Any) -> int:
        return 2 * a[0] * a[1] * b[1]

    def attention(*shapes: Any, products: int = 2, **kwargs: Any) -> int:
        """Products of queries with keys, and with values; backward, the four gradients of those two."""
        q, k = shapes[-3:-1] if products == 2 else shapes[1:3]
        return products * 2 * q[0] * q[1] * q[2] * q[3] * k[2]

    aten = torch.ops.aten
    uncounted = {  # torch counts neither the product in this form nor a CPU's attention
        aten.addmm_: product,
        aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: attention(q, k, v),
        aten._scaled_dot_product_flash_attention_for_cpu_backward: (
            lambda grad, q, k, v, *_, **__: attention(grad, q, k, v, products=4)
        ),
    }
    arguments = "--size tiny --context-length 20 --horizon 3 --stride 4 --samples 3 --sequences 2 --skip-released"
    settings, _ = parse_arguments([*arguments.split(), *more.split()])
    run = Run("packed", settings)
    packed = run.implementation
    assert isinstance(packed, PackedImplementation)
    sequences = packed.rollout(run.contexts)
    expected = count_flops(SIZES["tiny"], settings, work_of(packed))
    generated, truth = packed.features(sequences)
    advantages = packed.advantages(sequences, generated, truth)
    packed.step = 0  # so that the same completions are drawn again
    phases = {
        "rollout": lambda: packed.rollout(run.contexts),
        "features": lambda: packed.features(sequences),
        "update": lambda: packed.update(sequences, advantages),
    }
    for phase, run_phase in phases.items():
        with FlopCounterMode(display=False, custom_mapping=uncounted) as counter:
            run_phase()
        assert 0.75 <= expected[phase] / counter.get_total_flops() <= 1.02, phase


@pytest.mark.parametrize("name", RESULTS)
def test_committed_results_stay_comparable(name: str) -> None:
    result = RESULTS[name]
    known = {field.name for field in fields(Settings)} & set(result["settings"])
    settings = Settings(**{name: result["settings"][name] for name in known})
    untreed = Work.untreed(settings.layout, settings.sequences)
    work = Work(**vars(untreed) | result.get("work", {}))  # rollouts did not share at first
    assert count_flops(SIZES[settings.size], settings, work) == pytest.approx(result["flops"], rel=0.01)
