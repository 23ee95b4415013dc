"""Which samples compute for which, against a loop over tuples of tokens."""

from __future__ import annotations

import hypothesis.strategies as st
import torch
from hypothesis import given, settings
from torch import Tensor

from ebft.model.attention import Computed
from ebft.model.rollout import expected_sizes


@given(
    b=st.integers(1, 3), B=st.integers(1, 4), n=st.integers(1, 5), g=st.integers(1, 3), seed=st.integers(0, 99),
    more=st.integers(0, 5),
)  # fmt: skip
def test_samples_follow_the_first_that_is_like_them(b: int, B: int, n: int, g: int, seed: int, more: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    begun = torch.randint(2, (b, B, n, g), generator=generator)
    kept = torch.rand(b, B, generator=generator) < 0.8
    leaders: list[int] = []
    for row in range(b):
        for anchor in range(B):
            seen: set[tuple[int, ...]] = set()
            for sample in range(n):
                tokens = tuple(begun[row, anchor, sample].tolist())
                if (kept[row, anchor] and tokens not in seen) or row == anchor == sample == 0:
                    leaders.append((row * B + anchor) * n + sample)
                seen.add(tokens)
    exact, count = Computed.of_samples(begun, kept)
    fixed, _ = Computed.of_samples(begun, kept, len(leaders) + more)
    assert exact is not None
    assert fixed is not None
    assert int(count) == len(leaders)
    assert exact.chosen.tolist() == leaders
    assert fixed.chosen[: len(leaders)].tolist() == leaders
    per_sample = begun.reshape(b * B * n, g)
    for computed in (exact, fixed):
        followed = per_sample[computed.chosen[computed.standing]].view_as(begun)
        assert torch.equal(followed[kept], begun[kept])


def test_tokens_that_are_not_held_are_left_out() -> None:
    """Of a pass over two rows, one shorter than the other: attention sees both, layers the tokens alone."""
    held = torch.tensor([[True, True, True, False, False], [True, True, True, True, True]])
    computed = Computed.where(held)
    values = torch.arange(10).view(2, 5)
    assert computed.pick(values).tolist() == [[0, 1, 2, 5, 6, 7, 8, 9]]
    spread = computed.spread(computed.pick(values))
    assert torch.equal(spread[held], values[held])
    assert Computed.where(torch.zeros(2, 5, dtype=torch.bool)).pick(values).tolist() == [[0]]

    def sums(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        assert q.shape == (2, 3, 5, 1)
        return q + (k * held[:, None, :, None]).sum(2, keepdim=True) + v

    heads = computed.pick(values.float()[..., None, None].expand(2, 5, 3, 1)).transpose(1, 2)
    found = computed.attend(sums, heads, heads, heads)
    assert found.shape == heads.shape
    totals = torch.tensor([3.0] * 3 + [35.0] * 5)
    assert torch.equal(found[0, 0, :, 0], 2 * computed.pick(values)[0] + totals)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 2000), st.integers(1, 2000)), min_size=1, max_size=64))
def test_rollouts_like_the_last_ones_have_room(led: list[tuple[int, int]]) -> None:
    sizes = expected_sizes(led, 2000)
    assert sizes is not None
    for place, size in enumerate(sizes):
        most = max(counts[place] for counts in led)
        assert most <= size < 1.06 * most + 128
        assert size % 128 == 0
    assert expected_sizes([], 2000) is None
