"""Uniform numbers that depend on their own key only, and exact inverse-CDF sampling."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from ebft.method.sampling import (
    sample_tokens,
    sample_with_entropy,
    sequence_seeds,
    truncate,
    uniforms,
)

SETTINGS = settings(max_examples=50, deadline=None)


# ---- uniform numbers ---------------------------------------------------------------------------------------


def splitmix(x: int) -> int:
    """The finaliser of splitmix64 on Python's unbounded integers."""
    x %= 2**64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


@SETTINGS
@given(
    seed=st.integers(-(2**63), 2**63 - 1),
    anchor=st.integers(0, 10**6),
    j=st.integers(0, 7),
    g=st.integers(0, 7),
)
def test_uniform_is_a_chain_of_splitmix_hashes(seed: int, anchor: int, j: int, g: int) -> None:
    """Recorded runs can only be repeated if the numbers stay the same, so the hash is pinned here."""
    golden = 0x9E3779B97F4A7C15
    key = splitmix(seed + golden)
    for part in (anchor, j + 1, g + 1):
        key = splitmix(key + part * golden)
    found = uniforms(torch.tensor([seed]), torch.tensor([anchor]), 8, 8)[0, 0, j, g]
    assert float(found) == ((key >> 41) + 0.5) / 2**23
    assert 0 < float(found) < 1


def test_no_key_takes_a_token_that_has_no_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lowest and the highest number there are: with u = 0 the first token of the vocabulary came, at any odds."""
    for bits in (0, -1):  # of the hash, all zeros or all ones
        monkeypatch.setattr("ebft.method.sampling._mix", lambda key, bits=bits: torch.full_like(key, bits))
        uniform = uniforms(torch.tensor([1]), torch.tensor([8]), 1, 1)[0, 0]
        logits = torch.full((1, 300), -40.0)
        logits[:, 130] = 0.0
        assert sample_tokens(logits, uniform, 1.0).tolist() == [[130]]


@SETTINGS
@given(
    seeds=st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=4),
    anchors=st.lists(st.integers(1, 2000), min_size=1, max_size=5),
    samples=st.integers(1, 4),
    horizon=st.integers(1, 5),
)
def test_uniforms_do_not_depend_on_what_is_beside_them(
    seeds: list[int], anchors: list[int], samples: int, horizon: int
) -> None:
    together = uniforms(torch.tensor(seeds), torch.tensor(anchors), samples, horizon)
    assert together.shape == (len(seeds), len(anchors), samples, horizon)
    assert together.dtype == torch.float32
    reversed_batch = uniforms(torch.tensor(seeds[::-1]), torch.tensor(anchors[::-1]), samples, horizon)
    assert torch.equal(reversed_batch.flip(0).flip(1), together)
    wider = uniforms(torch.tensor(seeds), torch.tensor([*anchors, 5, 6]), samples + 3, horizon + 2)
    assert torch.equal(wider[:, : len(anchors), :samples, :horizon], together)
    per_row = uniforms(torch.tensor(seeds), torch.tensor([anchors] * len(seeds)), samples, horizon)
    assert torch.equal(per_row, together)
    for i, seed in enumerate(seeds):
        for b, anchor in enumerate(anchors):
            alone = uniforms(torch.tensor([seed]), torch.tensor([anchor]), samples, horizon)
            assert torch.equal(alone[0, 0], together[i, b])


@pytest.fixture(scope="module")
def many() -> Tensor:
    """[32 seeds, 32 anchors, 16 samples, 16 steps], neighbouring keys as in training."""
    return uniforms(torch.arange(32), torch.arange(1, 33) * 8, 16, 16)


def kolmogorov_smirnov(values: Tensor) -> float:
    """The largest distance between the empirical distribution and the uniform one."""
    ordered = values.flatten().double().sort().values
    N = ordered.numel()
    grid = torch.arange(N, dtype=torch.float64) / N
    return float(torch.maximum(ordered - grid, grid + 1 / N - ordered).max())


def test_uniforms_look_uniform(many: Tensor) -> None:
    assert float(many.min()) > 0
    assert float(many.max()) < 1
    assert kolmogorov_smirnov(many) < 1.63 / many.numel() ** 0.5  # the 1 % point; the keys are fixed
    for axis in range(4):
        for part in many.movedim(axis, 0):
            assert kolmogorov_smirnov(part) < 2.5 / part.numel() ** 0.5


# ---- tokens ------------------------------------------------------------------------------------------------

GRID = 4096
EVENLY_SPACED = torch.arange(GRID) / GRID


def random_logits(seed: int, V: int, spread: float = 2.0) -> Tensor:
    return spread * torch.randn(V, generator=torch.Generator().manual_seed(seed))


def frequencies(tokens: Tensor, V: int) -> Tensor:
    return torch.bincount(tokens.flatten(), minlength=V).double() / tokens.numel()


@SETTINGS
@given(seed=st.integers(0, 10**6), V=st.integers(1, 30), temperature=st.floats(0.1, 3))
def test_frequencies_equal_probabilities(seed: int, V: int, temperature: float) -> None:
    """Over evenly spaced numbers, a token is taken exactly as often as its probability says, +-1."""
    rows = torch.stack([random_logits(seed, V), random_logits(seed + 1, V)])
    tokens = sample_tokens(rows, EVENLY_SPACED.expand(2, -1), temperature)
    assert tokens.shape == (2, GRID)
    for row in range(2):
        expected = (rows[row].double() / temperature).softmax(0)
        assert (frequencies(tokens[row], V) - expected).abs().max() < 1.01 / GRID


def likeliest_set(probabilities: list[float], top_k: int | None, top_p: float | None) -> list[int]:
    order = sorted(range(len(probabilities)), key=lambda v: -probabilities[v])
    if top_k is not None:
        order = order[:top_k]
    if top_p is not None:
        total = sum(probabilities[v] for v in order)
        kept, mass = [], 0.0
        for v in order:
            kept.append(v)
            mass += probabilities[v] / total
            assume(abs(mass - top_p) > 1e-4)  # too close to call in float32
            if mass >= top_p:
                break
        order = kept
    return sorted(order)


@SETTINGS
@given(
    seed=st.integers(0, 10**6),
    V=st.integers(1, 12),
    temperature=st.floats(0.3, 2),
    top_k=st.none() | st.integers(1, 14),
    top_p=st.none() | st.floats(0.05, 1),
)
def test_truncated_sampling_equals_a_loop(
    seed: int, V: int, temperature: float, top_k: int | None, top_p: float | None
) -> None:
    logits = random_logits(seed, V, spread=1.0)
    probabilities = (logits.double() / temperature).softmax(0).tolist()
    kept = likeliest_set(probabilities, top_k, top_p if top_p != 1 else None)
    total = sum(probabilities[v] for v in kept)
    expected = [probabilities[v] / total if v in kept else 0.0 for v in range(V)]
    truncated = truncate(logits[None] / temperature, top_k, top_p)[0]
    assert [v for v in range(V) if truncated[v] > float("-inf")] == kept
    tokens = sample_tokens(logits[None], EVENLY_SPACED[None], temperature, top_k, top_p)
    assert frequencies(tokens, V).tolist() == pytest.approx(expected, abs=1.01 / GRID)
    assert set(tokens.flatten().tolist()) <= set(kept)


@SETTINGS
@given(
    seed=st.integers(0, 10**6),
    possible=st.lists(st.booleans(), min_size=1, max_size=40).filter(any),
    temperature=st.floats(0.05, 2),
)
def test_tokens_of_probability_zero_are_never_sampled(seed: int, possible: list[bool], temperature: float) -> None:
    logits = random_logits(seed, len(possible)).masked_fill(~torch.tensor(possible), float("-inf"))
    largest = 1 - 2.0**-23
    uniform = torch.cat([torch.tensor([0.0, 2.0**-23, largest]), EVENLY_SPACED])
    tokens = sample_tokens(logits[None], uniform[None], temperature)
    assert all(possible[token] for token in set(tokens.flatten().tolist()))


def test_tokens_and_entropy_of_a_vocabulary_of_several_blocks() -> None:
    logits = 3 * torch.randn(6, 300, generator=torch.Generator().manual_seed(1))
    uniform = torch.rand(6, 50, generator=torch.Generator().manual_seed(2))
    tokens, entropy = sample_with_entropy(logits, uniform, 0.7)
    p = torch.softmax(logits.double() / 0.7, -1)
    for row in range(6):
        for found, u in zip(tokens[row].tolist(), uniform[row].tolist(), strict=True):
            before = float(p[row, :found].sum())
            assert before - 1e-6 <= u <= before + float(p[row, found]) + 1e-6
    torch.testing.assert_close(entropy.double(), -(p * p.log()).sum(-1), rtol=1e-5, atol=1e-6)


def test_temperature_zero_takes_the_likeliest_token() -> None:
    logits = torch.stack([random_logits(seed, 9) for seed in range(5)])
    tokens = sample_tokens(logits, EVENLY_SPACED[:3].expand(5, -1), 0.0)
    expected = [max(range(9), key=row.tolist().__getitem__) for row in logits]
    assert tokens.tolist() == [[v] * 3 for v in expected]


def test_sequence_seeds_depend_on_run_step_and_sequence_alone() -> None:
    ids = torch.arange(1000)
    seeds = sequence_seeds(3, 7, ids)
    assert len(set(seeds.tolist())) == 1000
    assert torch.equal(sequence_seeds(3, 7, ids[[5, 2]]), seeds[[5, 2]])
    for other in (sequence_seeds(4, 7, ids), sequence_seeds(3, 8, ids)):
        assert not set(other.tolist()) & set(seeds.tolist())
