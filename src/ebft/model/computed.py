"""Which tokens of a pass are computed: not those that nobody looks at, and of samples of a rollout that have drawn the
same tokens so far, one for all. Layers see the chosen tokens one after the other; attention sees all, row by row.

How many there are has to be known on the host. On a CPU it is. A GPU is not asked at every step of a rollout:
`Expected` says how many it will be, from the rollouts before, and whoever relies on it looks at the end whether they
were enough.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ebft.method.rewards import token_groups
from ebft.model.sizes import rounded_up

ASK = None  # instead of a number: as many as there are, which the host waits for
Sizes = tuple[int | None, ...]  # of the steps of a rollout


@dataclass(frozen=True)
class Computed:
    """R of the b x N tokens of a pass are computed, and stand for the others too."""

    chosen: Tensor  # [R], places among all tokens, row after row
    standing: Tensor  # [b*N], which of the chosen stands for each token
    rows: int  # b

    @classmethod
    def where(cls, has_token: Tensor) -> Computed:
        """The places that have one, bool [b, N]. What the first of them says in place of the others means nothing."""
        places = has_token.flatten().clone()
        places[:1] = True  # somebody must be: rows that only fill up a process's part hold nothing
        return cls(places.nonzero()[:, 0], (places.cumsum(0) - 1) * places, len(has_token))

    @classmethod
    def of_samples(cls, begun: Tensor, kept: Tensor, size: int | None = ASK) -> tuple[Computed | None, Tensor]:
        """One sample for all that have drawn the same tokens so far, [b, B, n, g], at anchors that their row keeps,
        bool [b, B].

        size: R. Where fewer lead, others fill up; where more do, what is computed for the last is wrong.
        Returns None where all samples are computed, and how many lead.
        """
        first = token_groups(begun)
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
        return cls(in_order[:size], number[leader_of.flatten()].clamp(max=size - 1), b), count

    def pick(self, per_token: Tensor) -> Tensor:
        """[b, N, ...] of all tokens -> [1, R, ...] of the chosen."""
        return per_token.flatten(0, 1).index_select(0, self.chosen)[None]

    def spread(self, per_chosen: Tensor) -> Tensor:
        """[1, R, ...] of the chosen -> [b, N, ...] of all tokens."""
        return per_chosen[0].index_select(0, self.standing).unflatten(0, (self.rows, -1))

    def attend(self, attend: Callable[[Tensor, Tensor, Tensor], Tensor], *heads: Tensor) -> Tensor:
        """Attention among all tokens, [b, heads, N, d], for queries, keys and values of the chosen [1, heads, R, d]."""
        q, k, v = (self.spread(x.transpose(1, 2)).transpose(1, 2) for x in heads)
        return self.pick(attend(q, k, v).transpose(1, 2)).transpose(1, 2)


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
