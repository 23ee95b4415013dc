"""Samples of a rollout that have drawn the same tokens so far: one of them computes the step for all, and none of those
that nobody will look at.

How many compute has to be known on the host. On a CPU it is. A GPU is not asked at every step: `Expected` says how many
it will be, from the rollouts before, and whoever relies on it looks at the end whether they were enough.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ebft.method.tree import common_prefix
from ebft.model.sizes import rounded_up

ASK = None  # instead of a number: as many as there are, which the host waits for
Sizes = tuple[int | None, ...]  # of the steps of a rollout


@dataclass(frozen=True)
class Alike:
    """R of the b*B*n samples compute for all; rows are those of the batch one after the other."""

    leaders: Tensor  # [R], places among all samples; behind those that lead, some that fill up a rounded number
    group: Tensor  # [b*B*n], which leader each sample follows
    shape: tuple[int, int, int]  # b, B, n

    @classmethod
    def of(cls, begun: Tensor, kept: Tensor, size: int | None = ASK) -> tuple[Alike | None, Tensor]:
        """For what the samples have drawn so far, [b, B, n, g], at anchors that their row keeps, bool [b, B].

        size: R. Where fewer lead, others fill up; where more do, what is computed for the last is wrong.
        Returns None where all samples compute, and how many lead.
        """
        same = common_prefix(begun[:, :, :, None], begun[:, :, None])[..., -1]  # [b, B, n, n]
        first = same.to(torch.uint8).argmax(-1)
        b, B, n = first.shape
        leads = (first == torch.arange(n, device=first.device)) & kept[..., None]
        # Somebody must; samples of dropped anchors follow whoever came last. (A slice is filled on the device. A single
        # element would be copied from the host, which a graph cannot.)
        leads[:1, :1, :1] = True
        count = leads.sum()
        if size is ASK:
            size = int(count) if not begun.is_cuda else rounded_up(int(count), leads.numel())
        if size >= leads.numel() and begun.is_cuda:
            return None, count
        number = leads.flatten().cumsum(0) - 1
        leader_of = torch.arange(b * B, device=first.device).view(b, B, 1) * n + first
        in_order = leads.flatten().to(torch.uint8).sort(descending=True, stable=True).indices
        return cls(in_order[:size], number[leader_of.flatten()].clamp(max=size - 1), (b, B, n)), count

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


class Expected:
    """How many samples will lead at each step of a model's rollouts, by what kind of rollout it is."""

    # What the last few needed. Windows of text differ, and a rollout with too few is done again.
    _REMEMBERED, _MORE = 16, 1.03

    def __init__(self) -> None:
        self._needed: WeakKeyDictionary[nn.Module, dict[Hashable, deque[list[int]]]] = WeakKeyDictionary()

    def sizes(self, model: nn.Module, kind: Hashable, samples: int) -> tuple[int, ...] | None:
        """Of so many samples in all. None at first."""
        needed = self._needed.get(model, {}).get(kind)
        if not needed:
            return None
        highest = (max(counts) for counts in zip(*needed, strict=True))
        return tuple(rounded_up(int(count * self._MORE), samples) for count in highest)

    def learn(self, model: nn.Module, kind: Hashable, needed: Sequence[int]) -> None:
        known = self._needed.setdefault(model, {}).setdefault(kind, deque(maxlen=self._REMEMBERED))
        known.append(list(needed))
