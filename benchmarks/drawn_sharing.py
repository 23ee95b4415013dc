"""Completions of a model with random weights never agree. Here they are made to, as those of a real model do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from unittest.mock import patch

import torch
from torch import Tensor

from ebft.method.sampling import uniforms

# Shape of the distribution of a step's likeliest token's probability: nearly always close to 1 or to 0. With four
# samples of eight tokens the distinct prefixes are then 0.59 of all, and all four agree at 0.14 of the anchors: what
# SmolLM2-135M does on Q&A code at temperature 0.6 (`work` in the results says what came of it).
LIKELIEST = (0.6, 0.1)


@contextmanager
def shared_draws() -> Iterator[None]:
    """Rollouts in which samples begin like the first of their anchor, for as long as drawn: they are sampled with the
    same uniform numbers, and so take the same tokens."""
    with patch("ebft.model.rollout.uniforms", _agreeing_uniforms):
        yield


def _agreeing_uniforms(seeds: Tensor, anchors: Tensor, samples: int, horizon: int) -> Tensor:
    """Of the seeds alone and on their device, so that a graph that was captured gives others for other seeds."""
    uniform = uniforms(seeds, anchors, samples, horizon)
    places = uniforms(seeds + 1, anchors, 1, horizon)  # one for all samples of an anchor
    quantiles = _quantiles(uniform.device)
    likeliest = quantiles[(places * len(quantiles)).long()]
    follows = uniforms(seeds + 2, anchors, samples, horizon) < likeliest
    follows[:, :, 0] = True
    follows = follows.to(torch.uint8).cummin(-1).values.bool()
    return torch.where(follows, uniform[:, :, :1], uniform)


@cache
def _quantiles(device: torch.device) -> Tensor:
    a, b = (torch.tensor(shape, dtype=torch.float64) for shape in LIKELIEST)
    generator = torch.Generator().manual_seed(0)
    x, y = (torch._standard_gamma(shape.expand(2**16), generator=generator) for shape in (a, b))
    return (x / (x + y).clamp(min=1e-300)).sort().values.float().to(device)
