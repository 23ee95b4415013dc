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
from shapes import SIZES
from step_settings import Settings, parse_arguments

RESULTS = {
    file.stem: result
    for file in sorted((Path(step.__file__).parent / "results").glob("step-*.json"))
    if "flops" in (result := json.loads(file.read_text()))  # the oldest were measured before operations were counted
}


@pytest.mark.parametrize("more", ["", "--lora"])
def test_counted_operations_are_those_of_the_products(more: str) -> None:
    """The counts leave out attention to masked pairs, which a dense product computes all the same, so they may be
    lower than torch's, by no more than that."""

    def product(_: Any, a: Any, b: Any, **kwargs: Any) -> int:
        return 2 * a[0] * a[1] * b[1]

    in_place = {torch.ops.aten.addmm_: product}  # torch counts the product but not this form of it
    arguments = "--size tiny --context-length 20 --horizon 3 --stride 4 --samples 3 --sequences 2 --skip-released"
    settings, _ = parse_arguments([*arguments.split(), *more.split()])
    expected = count_flops(SIZES["tiny"], settings)
    run = Run("packed", settings)
    packed = run.implementation
    sequences = packed.rollout(run.contexts)
    generated, truth = packed.features(sequences)
    advantages = packed.advantages(sequences, generated, truth)
    phases = {
        "rollout": lambda: packed.rollout(run.contexts),
        "features": lambda: packed.features(sequences),
        "update": lambda: packed.update(sequences, advantages),
    }
    for phase, run_phase in phases.items():
        with FlopCounterMode(display=False, custom_mapping=in_place) as counter:
            run_phase()
        assert 0.8 <= expected[phase] / counter.get_total_flops() <= 1.02, phase


@pytest.mark.parametrize("name", RESULTS)
def test_committed_results_stay_comparable(name: str) -> None:
    result = RESULTS[name]
    settings = Settings(**{field.name: result["settings"][field.name] for field in fields(Settings)})
    assert count_flops(SIZES[settings.size], settings) == pytest.approx(result["flops"], rel=0.01)
