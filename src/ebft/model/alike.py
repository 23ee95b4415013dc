"""Samples of a rollout that have drawn the same tokens so far: one of them computes the step for all, and none of those
that nobody will look at.

The host has to know how many there are. A GPU it asks at every step, which pays where a step is long.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ebft.method.tree import common_prefix
from ebft.model.sizes import rounded_up


@dataclass(frozen=True)
class Alike:
    """R of the b*B*n samples compute for all; rows are those of the batch one after the other."""

    leaders: Tensor  # [R], places among all samples; behind those that lead, some that fill up a rounded number
    group: Tensor  # [b*B*n], which leader each sample follows
    shape: tuple[int, int, int]  # b, B, n

    @classmethod
    def of(cls, begun: Tensor, kept: Tensor) -> Alike | None:
        """For what the samples have drawn so far, [b, B, n, g], at anchors that their row keeps, bool [b, B].

        None where too few are alike on a GPU, for which numbers are rounded up: few shapes to compile.
        """
        same = common_prefix(begun[:, :, :, None], begun[:, :, None])[..., -1]  # [b, B, n, n]
        first = same.to(torch.uint8).argmax(-1)
        b, B, n = first.shape
        leads = (first == torch.arange(n, device=first.device)) & kept[..., None]
        leads[0, 0, 0] = True  # somebody must; samples of dropped anchors follow whoever came last
        number = leads.flatten().cumsum(0) - 1
        leader_of = torch.arange(b * B, device=first.device).view(b, B, 1) * n + first
        group = number[leader_of.flatten()]
        if not begun.is_cuda:
            return cls(leads.flatten().nonzero()[:, 0], group, (b, B, n))
        size = rounded_up(int(leads.sum()), leads.numel())
        if size >= leads.numel():
            return None
        in_order = leads.flatten().to(torch.uint8).sort(descending=True, stable=True).indices
        return cls(in_order[:size], group, (b, B, n))

    def chosen(self, per_sample: Tensor) -> Tensor:
        """[b, B*n] of all samples -> [1, R] of the leaders."""
        return per_sample.reshape(1, -1)[:, self.leaders]

    def spread(self, x: Tensor) -> Tensor:
        """Heads of the leaders [1, heads, R, d] -> of all samples [b, heads, B*n, d]."""
        b, B, n = self.shape
        return x[0].index_select(1, self.group).unflatten(1, (b, B * n)).transpose(0, 1)

    def gather(self, x: Tensor) -> Tensor:
        """[b, heads, B*n, d] of all samples -> [1, heads, R, d] of the leaders."""
        return x.transpose(0, 1).flatten(1, 2).index_select(1, self.leaders)[None]
