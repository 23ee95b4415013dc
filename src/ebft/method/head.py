"""From rows of hidden states to logits: the output projection of a language model, and nothing around it.

Sampling and training share this one function, so that the log-probs of a sample are the same in both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Head:
    """z = scale * (h W^T + bias), then softcap * tanh(z / softcap) if the model has a soft-cap."""

    weight: Tensor  # [V, H], tied to the embeddings or not
    bias: Tensor | None = None  # [V]
    scale: float = 1.0
    softcap: float | None = None
    ready: bool = False  # the weight is in the precision of the product already

    @property
    def vocabulary_size(self) -> int:
        return self.weight.shape[0]

    def prepared(self, hidden: Tensor) -> Head:
        """The same head with its weight in the precision `logits` multiplies in: once, for many chunks of rows."""
        if self.ready:
            return self
        dtype = self.compute_dtype(hidden)
        weight = self.weight.to(dtype)
        if not hidden.is_cuda:
            weight = weight.to(torch.promote_types(dtype, torch.float32))  # a CPU cannot multiply bf16 into float32
        return replace(self, weight=weight, ready=True)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [R, V] of hidden rows [R, H], in float32 (float64 for float64 rows)."""
        weight = self.prepared(hidden).weight
        z = full_product(hidden.to(self.compute_dtype(hidden)).to(weight.dtype), weight.t())
        if self.bias is not None:
            z = z + self.bias.to(z.dtype)
        if self.scale != 1.0:
            z = z * self.scale
        return self.softcap * torch.tanh(z / self.softcap) if self.softcap is not None else z

    def gradient_through(self, logits: Tensor, gradient: Tensor) -> Tensor:
        """d loss / d (h W^T + bias), given d loss / d logits; the logits themselves matter for a soft-cap only."""
        if self.softcap is not None:
            gradient = gradient * (1 - (logits / self.softcap).square())
        return gradient * self.scale if self.scale != 1.0 else gradient

    def compute_dtype(self, hidden: Tensor) -> torch.dtype:
        """The matrix product's: autocast's if that is on, else that of the hidden states."""
        device = hidden.device.type
        if torch.is_autocast_enabled(device):
            return torch.get_autocast_dtype(device)
        return hidden.dtype


def full_product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b in at least float32. Rounding logits to bf16 would cost the log-probs two digits."""
    with torch.autocast(a.device.type, enabled=False):
        if a.dtype in (torch.float32, torch.float64):
            return a @ b
        if a.is_cuda and not torch.is_grad_enabled():
            return torch.mm(a, b, out_dtype=torch.float32)
        return a.float() @ b.float()
