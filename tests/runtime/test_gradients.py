"""Gradients at one place: what an optimiser drops comes back as 0, what somebody else put there is taken over."""

from __future__ import annotations

import torch
from torch import nn

from ebft.runtime.gradients import FixedGradients


def test_gradients_stay_where_they_are() -> None:
    module = nn.Linear(3, 2)
    module.bias.requires_grad_(False)
    fixed, x = FixedGradients(module), torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    fixed.attach()
    kept = module.weight.grad
    assert kept is not None
    assert module.bias.grad is None
    module(x).sum().backward()
    fixed.attach()
    module(x).sum().backward()
    twice = kept.clone()
    torch.testing.assert_close(twice, 2 * x.sum(0).expand(2, -1))

    module.zero_grad()  # drops it
    assert module.weight.grad is None
    fixed.attach()
    assert module.weight.grad is kept
    assert not kept.any()

    module.weight.grad = twice.clone()
    fixed.attach()
    assert module.weight.grad is kept
    assert torch.equal(kept, twice)
