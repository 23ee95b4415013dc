"""Times of steps are those that were measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ebft.planning import rates

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def measured(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"step-h200-{name}.json").read_text())


@pytest.mark.parametrize(
    ("name", "adapter", "checkpointing"),
    [
        ("smollm2-135m", False, False),
        ("llama3.2-1b", False, False),
        ("qwen2.5-1.5b-trees", False, False),
        ("qwen2.5-1.5b-lora", True, False),
        ("qwen2.5-1.5b-adafactor", False, True),
    ],
)
def test_what_was_timed_comes_out_again(name: str, adapter: bool, checkpointing: bool) -> None:
    found = measured(name)
    shape, seconds = found["shape"], found["seconds"]["packed"]["iteration"]["median"]
    told = rates.step_seconds(shape["parameters"], shape["packed_tokens"], "h200", 1, adapter, checkpointing)
    assert told == pytest.approx(seconds, rel=0.01)


def test_rates_lie_between_the_measured_ones() -> None:
    assert rates._rate(10**6) == 171
    assert rates._rate(70 * 10**9) == 528
    middle = (134_515_008 * 1_235_814_400) ** 0.5  # halfway by the logarithm
    assert rates._rate(round(middle)) == pytest.approx((171 + 642) / 2, rel=1e-6)


def test_other_gpus_and_more_of_them() -> None:
    one = rates.step_seconds(10**9, 10**5, "h200", 1)
    assert rates.step_seconds(10**9, 10**5, "h100", 1) == pytest.approx(one)
    assert rates.step_seconds(10**9, 10**5, "a100", 4) == pytest.approx(one * 989 / 312 / 4)
