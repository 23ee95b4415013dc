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

# Up to a sixteenth of the largest, in whole blocks.
_STEPS, _BLOCK = 16, 128


def rounded_up(size: int, largest: int) -> int:
    step = -(-largest // (_STEPS * _BLOCK)) * _BLOCK
    return -(-max(size, 1) // step) * step


def ask(counts: Sequence[Tensor]) -> list[list[int]]:
    """The device's numbers, for the host. It waits for them."""
    return torch.stack(list(counts)).tolist()


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
        # element would be copied from the host.)
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


def too_few(sizes: Sequence[int], needed: Sequence[int]) -> bool:
    return any(count > size for count, size in zip(needed, sizes, strict=True))


class Expected:
    """How many samples will lead at each step of a model's rollouts, by what kind of rollout it is.

    The sizes stay as they are until a rollout needs more, or the last ones would have done with much less.
    """

    # Windows of text differ, and a rollout with too few is done again: so a little more than the last ones needed.
    _REMEMBERED, _MORE, _MUCH = 64, 1.06, 1.3

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[nn.Module, dict[Hashable, _Rollouts]] = WeakKeyDictionary()

    def sizes(self, model: nn.Module, kind: Hashable) -> tuple[int, ...] | None:
        """None at first."""
        known = self._known.get(model, {}).get(kind)
        return None if known is None else known.sizes

    def learn(self, model: nn.Module, kind: Hashable, samples: int, needed: Sequence[int]) -> None:
        """What a rollout of so many samples in all needed."""
        known = self._known.setdefault(model, {}).setdefault(kind, _Rollouts(deque(maxlen=self._REMEMBERED)))
        known.needed.append(list(needed))
        highest = (max(counts) for counts in zip(*known.needed, strict=True))
        enough = tuple(rounded_up(int(count * self._MORE), samples) for count in highest)
        settled = len(known.needed) == self._REMEMBERED
        if (
            known.sizes is None
            or too_few(known.sizes, needed)
            or (settled and sum(known.sizes) > self._MUCH * sum(enough))
        ):
            known.sizes = enough


@dataclass
class _Rollouts:
    """Of one kind."""

    needed: deque[list[int]]  # by the last ones
    sizes: tuple[int, ...] | None = None
