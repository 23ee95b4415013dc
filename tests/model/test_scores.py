"""Scale and soft-cap of attention scores."""

from __future__ import annotations

import math

import pytest
import torch

from ebft.model.flex import ScoreRule


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_scores_are_scaled_then_capped(softcap: float | None) -> None:
    products = [-100.0, -1.0, 0.0, 3.0]
    found = ScoreRule(0.5, None, softcap).scores(torch.tensor(products))
    expected = [0.5 * x if softcap is None else softcap * math.tanh(0.5 * x / softcap) for x in products]
    torch.testing.assert_close(found, torch.tensor(expected))


@pytest.mark.parametrize(
    ("given", "computed"),
    [(torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64)],
)
def test_scores_have_at_least_float32(given: torch.dtype, computed: torch.dtype) -> None:
    assert ScoreRule(1.0, None, None).scores(torch.ones(2, dtype=given)).dtype == computed
