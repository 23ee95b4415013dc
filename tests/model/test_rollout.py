from collections import deque
from functools import partial
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from ebft.method.cross_entropy import Head
from ebft.method.layout import StridedLayout
from ebft.method.sampling import uniforms
from ebft.model import rollout as rollout_module
from ebft.model.attention import Computed
from ebft.model.backbone import output_head, packed_hidden_states, prepare_model
from ebft.model.rollout import _generate, expected_sizes, rollout
from tests.models import VOCABULARY, tiny_model
from tests.plain import DOCUMENTS, T

SEEDS = torch.tensor([11, 5])


def some_ids(seed: int = 0, rows: int = 2) -> Tensor:
    return torch.randint(VOCABULARY, (rows, T), generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def sampled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Head, Tensor]]:
    """What tokens were drawn from, step after step: the head and the rows that were computed."""
    seen: list[tuple[Head, Tensor]] = []
    original = rollout_module._sample_rows

    def spy(*given: Any) -> Any:
        seen.append(given[:2])
        return original(*given)

    monkeypatch.setattr(rollout_module, "_sample_rows", spy)
    return seen


def test_cached_and_packed_distributions_are_the_same(
    family: str, device_and_backend: tuple[str, str], tolerance: float, sampled: list[tuple[Head, Tensor]]
) -> None:
    """And every token is the inverse CDF of its own, at the uniform number of its place."""
    device, backend = device_and_backend
    model = tiny_model(family).to(device)
    layout = StridedLayout(T, 7, 3, 3, document_ids=DOCUMENTS)  # more own tokens than the families' windows show
    ids, n, B, G = some_ids().to(device), layout.samples, layout.num_anchors, layout.horizon
    draw = partial(rollout, model, ids, layout, temperature=0.9, seeds=SEEDS, backend=backend)
    completions = draw(share=False)
    with torch.no_grad():
        hidden = packed_hidden_states(model, layout.pack(ids, completions), layout, backend=backend)
        logits = output_head(model).logits(hidden.flatten(0, 1)).unflatten(0, hidden.shape[:2])
    anchors, valid = (layout.anchors - 1)[:, None, None].expand(B, n, 1), layout.anchor_mask.expand(2, B)
    packed = logits[:, torch.cat([anchors, layout.completion_slots[..., :-1]], -1)]  # [2, B, n, G, V]
    assert len(sampled) == G
    for step, (head, rows) in enumerate(sampled):  # at the anchors once for all samples
        difference = head.logits(rows).detach().view(2, B, -1, VOCABULARY) - packed[..., step, :]
        assert difference[valid].abs().max() < tolerance * logits.abs().max()
    probabilities, tokens = (packed.double() / 0.9).softmax(-1), completions[..., None]
    upper, uniform = probabilities.cumsum(-1).gather(-1, tokens)[..., 0], uniforms(SEEDS, layout.anchors, n, G)
    lower, precise = upper - probabilities.gather(-1, tokens)[..., 0], 1e-5 if device == "cpu" else 1e-3
    inside = (lower - precise <= uniform.to(device)) & (uniform.to(device) <= upper + precise)
    assert inside[valid].all()
    if device == "cpu":
        assert torch.equal(draw(share=True)[valid], completions[valid])


def test_sharing_changes_no_sample(device_and_backend: tuple[str, str], sampled: list[tuple[Head, Tensor]]) -> None:
    """Enough samples for a GPU to leave some out, of which some fill up a rounded number."""
    device, backend = device_and_backend
    model = tiny_model().to(device)
    layout, ids = StridedLayout(T, 5, 1, 20, document_ids=DOCUMENTS), some_ids().to(device)
    shared, alone = (
        rollout(model, ids, layout, temperature=0.05, seeds=SEEDS, backend=backend, share=share)
        for share in (True, False)
    )
    kept = layout.anchor_mask.expand(2, -1)
    assert torch.equal(shared.cpu()[kept], alone.cpu()[kept])
    computed = [len(rows) for _, rows in sampled]
    assert sum(computed[:5]) < sum(computed[5:])
    for step, rows in enumerate(computed[1:5], 1):
        distinct = sum(len(set(map(tuple, anchor))) for anchor in shared.cpu()[kept][..., :step].tolist())
        assert rows == distinct + (not kept[0, 0]) if device == "cpu" else rows % 128 == 0


@pytest.mark.cuda
def test_samples_share_on_a_gpu_whether_enough_were_expected_or_not() -> None:
    model, layout = tiny_model().cuda(), StridedLayout(T, 5, 1, 40)
    base, sampling = prepare_model(model), (0.05, None, None)
    for trial in range(6):  # sizes are asked for, then expected; then far too few are expected
        if trial == 4:
            rollout_module._LED[base] = {(2, layout.num_anchors, 40, 5, sampling): deque([[1, 1, 1, 1]], 64)}
        ids, seeds = some_ids(trial).cuda(), SEEDS + trial
        shared, alone = (
            rollout(model, ids, layout, sampling[0], seeds=seeds, backend="flex", share=share)
            for share in (True, False)
        )
        assert torch.equal(shared, alone)
    (led,) = rollout_module._LED[base].values()
    assert all(count < 2 * layout.num_anchors * 40 for count in led[-1]), led


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


@torch.no_grad()
def test_a_number_of_samples_that_is_fixed_beforehand() -> None:
    """Those that fill it up change nothing; too few are noticed at the first step where they are."""
    model, ids = tiny_model(), some_ids()
    layout = StridedLayout(T, 5, 2, 6, document_ids=DOCUMENTS)
    given = (prepare_model(model), "sdpa", (0.3, None, None), layout, ids, SEEDS)
    drawn, leading = _generate(*given, (None,) * 4)
    kept, counts = layout.anchor_mask.expand(2, -1), leading.tolist()
    for more in (0, 1, 7, 1000):
        again, found = _generate(*given, tuple(count + more for count in counts))
        assert torch.equal(again.completions[kept], drawn.completions[kept])
        assert torch.equal(found, leading)
        assert torch.allclose(again.entropy[kept], drawn.entropy[kept], atol=1e-5)
    for step in range(4):
        sizes = tuple(count - (place == step) for place, count in enumerate(counts))
        _, found = _generate(*given, sizes)
        assert found[: step + 1].tolist() == counts[: step + 1]
        assert any(count > size for count, size in zip(found.tolist(), sizes, strict=True))


def test_what_is_sampled_depends_on_the_sequence_and_its_seed_alone() -> None:
    model = tiny_model()
    ids, seeds = some_ids(rows=5), torch.tensor([3, 1, 4, 1, 5])
    layout = StridedLayout(T, 4, 4, 3)
    together = rollout(model, ids, layout, seeds=seeds)
    for row in range(5):
        alone = rollout(model, ids[row : row + 1], layout, seeds=seeds[row : row + 1])
        assert torch.equal(alone[0], together[row])
    order = torch.tensor([4, 2, 0, 3, 1])
    assert torch.equal(rollout(model, ids[order], layout, seeds=seeds[order]), together[order])
    fewer = rollout(model, ids, StridedLayout(T, 3, 8, 2), seeds=seeds)
    assert torch.equal(fewer, together[:, 1::2, :2, :3])
    assert not torch.equal(rollout(model, ids, layout, seeds=seeds + 1), together)
    torch.manual_seed(0)
    assert torch.equal(rollout(model, ids, layout, seeds=seeds), together)


def test_end_tokens_end_completions() -> None:
    model, ids, layout = tiny_model(), some_ids(), StridedLayout(T, 6, 2, 4)
    ends = torch.tensor([3, 17, 20, 40, 41, 42])
    running_on = rollout(model, ids, layout, temperature=1.5, seeds=SEEDS)
    ended = rollout(model, ids, layout, temperature=1.5, seeds=SEEDS, end_token_ids=ends)
    assert bool(torch.isin(running_on, ends).any())
    for long, short in zip(running_on.reshape(-1, 6).tolist(), ended.reshape(-1, 6).tolist(), strict=True):
        stop = next((g for g, token in enumerate(long) if token in ends), 5)
        assert short == long[: stop + 1] + [long[stop]] * (5 - stop)
