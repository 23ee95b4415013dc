"""Completions of a model with random weights never agree. Here they are made to, as those of a real model do."""

from __future__ import annotations

import torch
from torch import Tensor

# Shape of the distribution of a step's likeliest token's probability: nearly always close to 1 or to 0. With four
# samples of eight tokens the distinct prefixes are then 0.59 of all, and all four agree at 0.14 of the anchors: what
# SmolLM2-135M does on Q&A code at temperature 0.6 (`sharing` in the results says what came of it).
LIKELIEST = (0.6, 0.1)


def share_prefixes(completions: Tensor, seed: int) -> Tensor:
    """Completions [b, B, n, G] that begin like the first sample of their anchor, for as long as drawn."""
    b, B, n, G = completions.shape
    generator = torch.Generator().manual_seed(seed)
    a, c = (torch._standard_gamma(torch.full((b, B, 1, G), shape), generator=generator) for shape in LIKELIEST)
    follows = torch.rand(b, B, n, G, generator=generator) < a / (a + c).clamp(min=1e-30)
    follows[:, :, 0] = True
    follows = follows.to(torch.uint8).cummin(-1).values.bool().to(completions.device)
    return torch.where(follows, completions[:, :, :1], completions)
