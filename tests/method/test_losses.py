"""The EBFT loss against its formula, written as loops over tokens with full logits."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ebft.method.cross_entropy import Head, Reference
from ebft.method.layout import PackedLayout, StridedLayout
from ebft.method.losses import LossTerms, ebft_loss

SETTINGS = settings(max_examples=50, deadline=None)
V, D, ROWS = 7, 4, 2


@dataclass(frozen=True)
class Case:
    """A layout for a batch of two, and by hand what it stands for."""

    layout: PackedLayout
    anchors: list[list[int | None]]  # per row; None where dropped
    truth: list[list[int]]  # per row: the context tokens that count in the cross-entropy


CASES = {
    "one document": Case(StridedLayout(8, horizon=3, stride=2, samples=2), [[2, 4]] * 2, [[1, 2, 3, 4, 5, 6, 7]] * 2),
    "documents and padding": Case(
        StridedLayout(
            8,
            horizon=2,
            stride=2,
            samples=3,
            document_ids=torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0, -1, -1]]),
        ),
        [[2, None, 6], [2, 4, None]],
        [[1, 2, 3, 5, 6, 7], [1, 2, 3, 4, 5]],
    ),
    "answers only": Case(
        StridedLayout(
            6, horizon=2, stride=1, samples=2, answer_mask=torch.tensor([0, 0, 1, 1, 1, 1], dtype=torch.bool)
        ),
        [[2, 3, 4]] * 2,
        [[2, 3, 4, 5]] * 2,
    ),
    "chosen anchors, short truths": Case(
        PackedLayout(6, horizon=3, samples=4, anchors=torch.tensor([[1, 4], [3, 0]]), lengths=torch.tensor([6, 5])),
        [[1, 4], [3, None]],
        [[1, 2, 3, 4, 5], [1, 2, 3, 4]],
    ),
    "one sample of one token": Case(StridedLayout(4, horizon=1, stride=1, samples=1), [[1, 2, 3]] * 2, [[1, 2, 3]] * 2),
}


@dataclass
class Problem:
    case: Case
    hidden: Tensor
    head: Head
    packed_ids: Tensor
    advantages: Tensor
    temperature: float
    gamma: float = 0.0
    completion_lengths: Tensor | None = None
    reference: Reference | None = None
    kl_weight: float = 0.0
    generated_tokens: float | None = None
    truth_tokens: float | None = None

    def library(self, chunk_rows: int | None = None) -> LossTerms:
        return ebft_loss(
            self.hidden,
            self.head,
            self.packed_ids,
            self.case.layout,
            self.advantages,
            self.temperature,
            self.gamma,
            self.completion_lengths,
            self.reference,
            self.kl_weight,
            self.generated_tokens,
            self.truth_tokens,
            chunk_rows,
        )


def random_problem(
    seed: int,
    case: Case,
    gamma: float = 0.0,
    ends: bool = False,
    kl_weight: float = 0.0,
    counts: tuple[float, float] | None = None,
) -> Problem:
    g = torch.Generator().manual_seed(seed)
    layout = case.layout
    S, n, B, G = layout.packed_length, layout.samples, layout.num_anchors, layout.horizon

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    return Problem(
        case,
        hidden=normal(ROWS, S, D).requires_grad_(),
        head=Head(normal(V, D).requires_grad_()),
        packed_ids=torch.randint(0, V, (ROWS, S), generator=g),
        advantages=normal(ROWS, B, n),
        temperature=0.6,
        gamma=gamma,
        completion_lengths=torch.randint(1, G + 1, (ROWS, B, n), generator=g) if ends else None,
        reference=Reference(normal(ROWS, S, D + 1), Head(normal(V, D + 1))) if kl_weight else None,
        kl_weight=kl_weight,
        generated_tokens=counts[0] if counts else None,
        truth_tokens=counts[1] if counts else None,
    )


@dataclass
class Token:
    """One generated token that counts."""

    key: tuple[int, int, int, int]  # row, anchor, sample, step
    advantage: float
    log_p: Tensor
    entropy: float
    kl: Tensor


def generated_tokens(problem: Problem) -> list[Token]:
    layout = problem.case.layout
    T, G, n = layout.context_length, layout.horizon, layout.samples
    tokens = []
    for row in range(ROWS):
        for b, anchor in enumerate(problem.case.anchors[row]):
            for j in range(n):
                lengths = problem.completion_lengths
                length = G if lengths is None else int(lengths[row, b, j])
                for g in range(length if anchor is not None else 0):
                    assert anchor is not None
                    slot = T + (b * n + j) * G + g
                    predictor = slot - 1 if g > 0 else anchor - 1
                    logits = problem.head.weight @ problem.hidden[row, predictor]
                    p = (logits / problem.temperature).softmax(0)
                    kl = torch.zeros(())
                    if problem.reference is not None:
                        reference = problem.reference
                        q_logits = reference.head.weight @ reference.hidden[row, predictor]
                        q = (q_logits / problem.temperature).softmax(0)
                        kl = (p * (p / q).log()).sum()
                    tokens.append(
                        Token(
                            key=(row, b, j, g),
                            advantage=float(problem.advantages[row, b, j]),
                            log_p=p[problem.packed_ids[row, slot]].log(),
                            entropy=-sum(float(x) * float(x.log()) for x in p.detach()),
                            kl=kl,
                        )
                    )
    return tokens


def truth_losses(problem: Problem) -> list[Tensor]:
    losses = []
    for row in range(ROWS):
        for t in problem.case.truth[row]:
            p = (problem.head.weight @ problem.hidden[row, t - 1]).softmax(0)
            losses.append(-p[problem.packed_ids[row, t]].log())
    return losses


def expected_loss(problem: Problem) -> Tensor:
    """The formula; with a KL term, the surrogate whose gradient is that of the divergence of completions.

    That divergence is E sum_g KL_g. Its gradient has a part through each KL_g, and one through the choice of
    earlier tokens: a policy gradient whose cost is the KL of all later steps. The mean of that cost over the
    other samples of the anchor is subtracted.
    """
    tokens = generated_tokens(problem)
    N = problem.generated_tokens or len(tokens)
    loss = sum(-token.advantage * token.log_p for token in tokens) / N
    if problem.gamma:
        losses = truth_losses(problem)
        loss = loss + problem.gamma * sum(losses) / (problem.truth_tokens or len(losses))
    if problem.reference is None:
        return loss
    kl = {token.key: float(token.kl.detach()) for token in tokens}
    n, G = problem.case.layout.samples, problem.case.layout.horizon

    def later_cost(row: int, b: int, j: int, g: int) -> float:
        return sum(kl.get((row, b, j, later), 0.0) for later in range(g + 1, G))

    for token in tokens:
        row, b, j, g = token.key
        cost = later_cost(row, b, j, g)
        if n > 1:
            cost -= sum(later_cost(row, b, i, g) for i in range(n) if i != j) / (n - 1)
        loss = loss + problem.kl_weight / N * (token.kl + cost * token.log_p)
    return loss


def check(problem: Problem, chunk_rows: int | None = None) -> None:
    found, expected = problem.library(chunk_rows), expected_loss(problem)
    close = {"rtol": 1e-5, "atol": 1e-6}  # the weights of tokens are float32
    torch.testing.assert_close(found.loss, expected, **close)
    leaves = [problem.hidden, problem.head.weight]
    torch.testing.assert_close(torch.autograd.grad(found.loss, leaves), torch.autograd.grad(expected, leaves), **close)

    tokens, losses = generated_tokens(problem), truth_losses(problem)
    N = problem.generated_tokens or len(tokens)
    assert int(found.generated_tokens) == len(tokens)
    assert int(found.truth_tokens) == len(losses)
    for token in tokens:
        row, b, j, g = token.key
        assert float(found.log_probs[row, b, j, g]) == pytest.approx(float(token.log_p.detach()), rel=1e-6)
    policy = sum(-t.advantage * float(t.log_p.detach()) for t in tokens) / N
    assert float(found.policy) == pytest.approx(policy, rel=1e-5, abs=1e-5)
    assert float(found.entropy) == pytest.approx(sum(t.entropy for t in tokens) / N, rel=1e-5, abs=1e-5)
    if problem.gamma:
        cross_entropy = sum(float(x.detach()) for x in losses) / (problem.truth_tokens or len(losses))
        assert float(found.cross_entropy) == pytest.approx(cross_entropy, rel=1e-5, abs=1e-5)
    else:
        assert torch.isnan(found.cross_entropy)
    if problem.reference is None:
        assert found.kl is None
    else:
        kl = sum(float(t.kl.detach()) for t in tokens) / N
        assert float(found.kl) == pytest.approx(kl, rel=1e-5, abs=1e-5)


@SETTINGS
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
    seed: int,
    name: str,
    gamma: float,
    ends: bool,
    kl_weight: float,
    counts: tuple[float, float] | None,
    chunk_rows: int | None,
) -> None:
    check(random_problem(seed, CASES[name], gamma, ends, kl_weight, counts), chunk_rows)


def test_advantages_and_reference_are_constants() -> None:
    problem = random_problem(3, CASES["one document"], kl_weight=0.5)
    assert problem.reference is not None
    problem.advantages.requires_grad_()
    problem.reference.hidden.requires_grad_()
    problem.reference.head.weight.requires_grad_()
    problem.library().loss.backward()
    assert problem.advantages.grad is None
    assert problem.reference.hidden.grad is None
    assert problem.reference.head.weight.grad is None


def test_greedy_completions_are_an_error() -> None:
    with pytest.raises(ValueError, match="no policy gradient; use a value above 0"):
        replace(random_problem(6, CASES["one document"]), temperature=0.0).library()
