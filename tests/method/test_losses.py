"""The EBFT loss against its formula, written as loops over tokens with full logits."""

from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ebft.method.cross_entropy import Head, Reference
from ebft.method.layout import PackedLayout, StridedLayout
from ebft.method.losses import ebft_loss

V, D, ROWS = 7, 4, 2
DOCUMENTS = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0, -1, -1]])
ANSWER = torch.tensor([0, 0, 1, 1, 1, 1]).bool()
# A layout for a batch of two and, by hand, its anchors per row, None where dropped, and the context tokens that count
# in the cross-entropy.
CASES: dict[str, tuple[PackedLayout, list[list[int | None]], list[list[int]]]] = {
    "one document": (StridedLayout(8, horizon=3, stride=2, samples=2), [[2, 4]] * 2, [[1, 2, 3, 4, 5, 6, 7]] * 2),
    "documents and padding": (
        StridedLayout(8, horizon=2, stride=2, samples=3, document_ids=DOCUMENTS),
        [[2, None, 6], [2, 4, None]],
        [[1, 2, 3, 5, 6, 7], [1, 2, 3, 4, 5]],
    ),
    "answers only": (
        StridedLayout(6, horizon=2, stride=1, samples=2, answer_mask=ANSWER),
        [[2, 3, 4]] * 2,
        [[2, 3, 4, 5]] * 2,
    ),
    "chosen anchors, short truths": (
        PackedLayout(6, horizon=3, samples=4, anchors=torch.tensor([[1, 4], [3, 0]]), lengths=torch.tensor([6, 5])),
        [[1, 4], [3, None]],
        [[1, 2, 3, 4, 5], [1, 2, 3, 4]],
    ),
    "one sample of one token": (StridedLayout(4, horizon=1, stride=1, samples=1), [[1, 2, 3]] * 2, [[1, 2, 3]] * 2),
    "no anchor": (
        PackedLayout(4, 2, samples=2, anchors=torch.tensor([0]), allow_empty=True),
        [[None]] * 2,
        [[1, 2, 3]] * 2,
    ),
}


def expected_terms(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """The formula; with a KL term, the surrogate whose gradient is that of the divergence of completions.

    That divergence is E sum_g KL_g. Its gradient has a part through each KL_g, and one through the choice of earlier
    tokens: a policy gradient whose cost is the KL of all later steps. The mean of that cost over the other samples of
    the anchor is subtracted.
    """
    layout, anchors, truth = CASES[name]
    T, G, n, B = layout.context_length, layout.horizon, layout.samples, layout.num_anchors
    ids, hidden, weight = given["packed_ids"], given["hidden"], given["head"].weight
    lengths, reference = given["completion_lengths"], given["reference"]
    log_probs, kls, entropy = {}, {}, 0.0
    for row, b, j, g in product(range(ROWS), range(B), range(n), range(G)):
        anchor = anchors[row][b]
        if anchor is None or (lengths is not None and g >= lengths[row, b, j]):
            continue
        slot = T + (b * n + j) * G + g
        predictor = slot - 1 if g else anchor - 1
        p = (weight @ hidden[row, predictor] / given["temperature"]).softmax(0)
        log_probs[row, b, j, g] = p[ids[row, slot]].log()
        entropy -= sum(float(x) * float(x.log()) for x in p.detach())
        kls[row, b, j, g] = torch.zeros(())
        if reference is not None:
            q = (reference.head.weight @ reference.hidden[row, predictor] / given["temperature"]).softmax(0)
            kls[row, b, j, g] = (p * (p / q).log()).sum()
    truths = [(row, t) for row in range(ROWS) for t in truth[row]]
    losses = [-(weight @ hidden[row, t - 1]).log_softmax(0)[ids[row, t]] for row, t in truths]

    def later_cost(row: int, b: int, j: int, g: int) -> float:
        return sum(float(kls.get((row, b, j, later), torch.zeros(())).detach()) for later in range(g + 1, G))

    N = given.get("generated_tokens") or len(log_probs) or 1
    policy = sum(-given["advantages"][key[:3]] * log_p for key, log_p in log_probs.items()) / N
    cross_entropy = sum(losses) / (given.get("truth_tokens") or len(losses))
    loss = policy + given.get("gamma", 0) * cross_entropy
    for (row, b, j, g), log_p in log_probs.items():
        others = [later_cost(row, b, i, g) for i in range(n) if i != j]
        cost = later_cost(row, b, j, g) - sum(others) / max(n - 1, 1)
        loss = loss + given["kl_weight"] / N * (kls[row, b, j, g] + cost * log_p)
    return {
        "loss": loss,
        "policy": policy,
        "cross_entropy": cross_entropy if given.get("gamma") else torch.tensor(float("nan")),
        "kl": sum(kls.values()) / N,
        "entropy": entropy / N,
        "log_probs": log_probs,
        "generated_tokens": len(log_probs),
        "truth_tokens": len(losses),
    }


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    name=st.sampled_from(list(CASES)),
    gamma=st.sampled_from([0.0, 0.1, 1.0]),
    ends=st.booleans(),
    kl_weight=st.sampled_from([0.0, 0.5]),
    counts=st.none() | st.tuples(st.floats(1, 100), st.floats(1, 100)),
    chunk_rows=st.none() | st.integers(1, 20),
)
def test_loss_and_gradient_equal_the_formula(
    seed: int, name: str, gamma: float, ends: bool, kl_weight: float, counts: Any, chunk_rows: int | None
) -> None:
    g, layout = torch.Generator().manual_seed(seed), CASES[name][0]
    S, shape, G = layout.packed_length, (ROWS, layout.num_anchors, layout.samples), layout.horizon
    normal = partial(torch.randn, generator=g, dtype=torch.float64)
    given = {
        "hidden": normal(ROWS, S, D).requires_grad_(),
        "head": Head(normal(V, D).requires_grad_()),
        "packed_ids": torch.randint(0, V, (ROWS, S), generator=g),
        "layout": layout,
        "advantages": normal(*shape),
        "temperature": 0.6,
        "completion_lengths": torch.randint(1, G + 1, shape, generator=g) if ends else None,
        "reference": Reference(normal(ROWS, S, D + 1), Head(normal(V, D + 1))) if kl_weight else None,
        "kl_weight": kl_weight,
        "gamma": gamma,
        **dict(zip(("generated_tokens", "truth_tokens"), counts or (), strict=False)),
    }
    constants = [given["advantages"], *([given["reference"].hidden] if kl_weight else [])]
    for constant in constants:
        constant.requires_grad_()
    found, expected = ebft_loss(**given, chunk_rows=chunk_rows), expected_terms(name, given)
    close = {"rtol": 1e-5, "atol": 1e-6}  # the weights of tokens are float32
    torch.testing.assert_close(found.loss, expected["loss"], **close)
    leaves = [given["hidden"], given["head"].weight]
    assert torch.autograd.grad(found.loss, constants, retain_graph=True, allow_unused=True) == (None,) * len(constants)
    gradients = (torch.autograd.grad(loss, leaves) for loss in (found.loss, expected["loss"]))
    torch.testing.assert_close(*gradients, **close)
    for key, log_p in expected["log_probs"].items():
        assert float(found.log_probs[key]) == pytest.approx(float(log_p.detach()), rel=1e-6)
    assert (found.kl is None) == (not kl_weight)
    for term in ("policy", "cross_entropy", "entropy", *(["kl"] if kl_weight else [])):
        value = float(torch.as_tensor(expected[term]).detach())
        assert float(getattr(found, term)) == pytest.approx(value, rel=1e-5, abs=1e-5, nan_ok=True), term
    counted = (int(found.generated_tokens), int(found.truth_tokens))
    assert counted == (expected["generated_tokens"], expected["truth_tokens"])
