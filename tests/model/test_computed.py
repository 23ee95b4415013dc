"""Which samples compute for which, against a loop over tuples of tokens."""

from __future__ import annotations

import hypothesis.strategies as st
import torch
from hypothesis import given, settings
from torch import Tensor, nn

from ebft.model.computed import Computed, Expected


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


def test_sizes_hold_what_rollouts_needed() -> None:
    expected, model, other = Expected(), nn.Linear(1, 1), nn.Linear(1, 1)
    assert expected.sizes(model, "kind") is None
    expected.learn(model, "kind", 4096, [300, 1000])
    assert expected.sizes(model, "kind") == (512, 1280)  # a little more, rounded up to 256
    expected.learn(model, "kind", 4096, [500, 1270])
    assert expected.sizes(model, "kind") == (512, 1280), "enough"
    expected.learn(model, "kind", 4096, [520, 900])
    assert expected.sizes(model, "kind") == (768, 1536), "too few, of the first: all are set again"
    assert expected.sizes(model, "other") is None
    assert expected.sizes(other, "kind") is None
    expected.learn(model, "kind", 4096, [10, 4000])
    assert expected.sizes(model, "kind") == (768, 4352)
    for _ in range(63):
        expected.learn(model, "kind", 4096, [10, 900])
        assert expected.sizes(model, "kind") == (768, 4352), "one of the last ones needed them"
    expected.learn(model, "kind", 4096, [10, 900])
    assert expected.sizes(model, "kind") == (256, 1024), "none did"


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 2000), st.integers(1, 2000)), min_size=1, max_size=200))
def test_after_a_rollout_its_like_has_room(rollouts: list[tuple[int, int]]) -> None:
    expected, model, sets = Expected(), nn.Linear(1, 1), set()
    for needed in rollouts:
        expected.learn(model, "kind", 2000, needed)
        sizes = expected.sizes(model, "kind")
        assert sizes is not None
        assert all(count <= size for count, size in zip(needed, sizes, strict=True))
        sets.add(sizes)
    if len(rollouts) <= 64:  # sizes only grow meanwhile, by steps of 128
        assert len(sets) <= 2 * 17
