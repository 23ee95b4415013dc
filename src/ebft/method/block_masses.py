"""A softmax in one pass over its logits: sums over blocks of tokens, from which everything else follows."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# Tokens of a block. Few enough to stay in a GPU's registers between their highest logit and their sums.
BLOCK = 128


def masses_by_block(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The highest logit of each row [R, 1], the mass of each block of tokens relative to it [R, blocks], and the
    entropy of the row [R].

    Once compiled, the logits are read once, and nothing is written but sums: a block's are relative to its own highest
    logit, and put right when the row's is known. Probabilities would be another array as large as the logits.
    """
    lowest = torch.finfo(logits.dtype).min  # a token without any mass has a logit of minus infinity
    missing = -logits.shape[-1] % BLOCK
    padded = F.pad(logits, (0, missing), value=-torch.inf) if missing else logits
    blocks = padded.unflatten(-1, (-1, BLOCK))
    highest_of_block = blocks.amax(-1).clamp(min=lowest)
    below = blocks - highest_of_block[..., None]
    masses = torch.exp(below)
    sums, products = masses.sum(-1), (masses * below.clamp(min=lowest)).sum(-1)
    highest = highest_of_block.amax(-1, keepdim=True)
    down = (highest_of_block - highest).clamp(min=lowest)
    scale = torch.exp(down)
    entropy_part = (scale * (products + sums * down)).sum(-1)
    sums = sums * scale
    total = sums.sum(-1)
    return highest, sums, total.log() - entropy_part / total
