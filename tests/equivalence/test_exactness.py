"""The theory, with every expectation enumerated: no sampling, no tolerance for bias.

The policy writes two tokens from a vocabulary of five, so there are 25 completions. Its parameters are the
logits [6, 5]: row 0 for the first token, row 1 + a for the second token after a first token a.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from ebft.method.cross_entropy import Head, Reference
from ebft.method.layout import PackedLayout
from ebft.method.losses import ebft_loss
from ebft.method.rewards import feature_matching_rewards, leave_one_out_advantages

V = 5
COMPLETIONS = list(itertools.product(range(V), repeat=2))
COUNT = len(COMPLETIONS)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def log_probabilities(theta: Tensor) -> Tensor:
    """[6, 5] -> [25]."""
    log_p = theta.log_softmax(-1)
    return torch.stack([log_p[0, first] + log_p[1 + first, second] for first, second in COMPLETIONS])


def all_tuples(count: int, n: int) -> Tensor:
    return torch.tensor(list(itertools.product(range(count), repeat=n)))


def expected_estimator(log_p: Tensor, theta: Tensor, tuples: Tensor, advantages: Tensor) -> Tensor:
    """Sum over all tuples of their probability times -1/n sum_j A_j grad log p(y_j)."""
    n = tuples.shape[1]
    probability = log_p.detach().exp()[tuples].prod(1)
    per_completion = torch.zeros_like(log_p).index_add(
        0, tuples.flatten(), (probability[:, None] * advantages / n).flatten()
    )
    return torch.autograd.grad(-(per_completion * log_p).sum(), theta)[0]


# ---- (a) the policy gradient is unbiased -------------------------------------------------------------------


class FeatureMatching:
    """All n-tuples of completions with their rewards."""

    def __init__(self, n: int) -> None:
        self.features, self.truth = normal(0, COUNT, 6), normal(1, 6)
        self.theta = normal(2, 1 + V, V).requires_grad_()
        self.log_p = log_probabilities(self.theta)
        self.tuples = all_tuples(COUNT, n)
        truths = self.truth.expand(len(self.tuples), -1)
        self.alignment, self.diversity = feature_matching_rewards(self.features[self.tuples], truths, whitening="none")

    def exact_gradient(self, alpha: float) -> Tensor:
        mean = self.log_p.exp() @ self.features
        objective = alpha * (mean - self.truth / alpha).square().sum()
        return torch.autograd.grad(objective, self.theta, retain_graph=True)[0]

    def expected(self, advantages: Tensor) -> Tensor:
        return expected_estimator(self.log_p, self.theta, self.tuples, advantages)


@pytest.mark.parametrize("alpha", [1.0, 0.5])
@pytest.mark.parametrize("n", [2, 3])
def test_policy_gradient_with_baseline_is_unbiased(n: int, alpha: float) -> None:
    problem = FeatureMatching(n)
    exact = problem.exact_gradient(alpha)
    advantages = leave_one_out_advantages(problem.alignment, problem.diversity, alpha)
    torch.testing.assert_close(problem.expected(advantages), exact, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("alpha", [1.0, 0.5])
@pytest.mark.parametrize("n", [2, 3])
def test_policy_gradient_without_baseline_is_unbiased(n: int, alpha: float) -> None:
    problem = FeatureMatching(n)
    exact = problem.exact_gradient(alpha)
    rewards = problem.alignment - alpha * problem.diversity
    torch.testing.assert_close(problem.expected(rewards), exact, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("n", [2, 3])
def test_the_naive_leave_one_out_baseline_is_biased(n: int) -> None:
    """Hence the tests above can fail: the mean reward of the others contains this sample."""
    problem = FeatureMatching(n)
    exact = problem.exact_gradient(1.0)
    rewards = problem.alignment - problem.diversity
    naive = (rewards.sum(1, keepdim=True) - rewards) / (n - 1)
    biased = problem.expected(rewards - naive)
    assert (biased - exact).norm() > 0.1 * exact.norm()


# ---- (b) the loss with KL regularisation -------------------------------------------------------------------

BETA = 0.8
TEMPERATURE = 0.7


def lengths_of(end_token: int | None) -> Tensor:
    """[25] tokens that count: with an end token, nothing after it."""
    return torch.tensor([1 if first == end_token else 2 for first, _ in COMPLETIONS])


def random_features(end_token: int | None) -> Tensor:
    """[25, 6]; completions that differ only after the end token share their features."""
    features = normal(3, COUNT, 6)
    return torch.stack([features[V * y[0] if y[0] == end_token else V * y[0] + y[1]] for y in COMPLETIONS])


def kl_of_completions(theta: Tensor, q_theta: Tensor, end_token: int | None) -> Tensor:
    """KL(p || q) between what the two models write up to the end token, summed over outcomes."""
    first_p, first_q = theta[0].log_softmax(-1), q_theta[0].log_softmax(-1)
    total = torch.zeros((), dtype=torch.float64)
    for first, second in COMPLETIONS:
        if first == end_token:
            if second == 0:
                total = total + first_p[first].exp() * (first_p[first] - first_q[first])
            continue
        log_p = first_p[first] + theta[1 + first].log_softmax(-1)[second]
        log_q = first_q[first] + q_theta[1 + first].log_softmax(-1)[second]
        total = total + log_p.exp() * (log_p - log_q)
    return total


def expected_loss_gradient(
    theta: Tensor, q_theta: Tensor, features: Tensor, target: Tensor, kl_weight: float, end_token: int | None
) -> Tensor:
    """The expectation of the gradient of `ebft_loss` over all pairs of completions.

    Every pair is one row of a batch: two context tokens, an anchor between them, two completions. The hidden
    states are the logits (times the temperature) and the head is the identity, so that the gradient of each row
    is at hand and can be weighted by the probability of its pair.
    """
    n, G, T = 2, 2, 2
    layout = PackedLayout(T, G, n, torch.tensor([1]))
    pairs = all_tuples(COUNT, n)
    tokens = torch.tensor(COMPLETIONS)[pairs]  # [625, n, G]
    b = len(pairs)
    packed = layout.pack(torch.zeros(b, T, dtype=torch.long), tokens[:, None])
    alignment, diversity = feature_matching_rewards(features[pairs], target.expand(b, -1), whitening="none")
    advantages = leave_one_out_advantages(alignment, diversity)

    # What each packed token predicts from: the state after it. States that predict nothing are the root's.
    states = torch.zeros(b, layout.packed_length, dtype=torch.long)
    for j in range(n):
        states[:, layout.completion_slots[0, j, 0]] = 1 + tokens[:, j, 0]
    theta = theta.detach().requires_grad_()
    hidden = TEMPERATURE * theta[states]
    found = ebft_loss(
        hidden,
        Head(torch.eye(V, dtype=torch.float64)),
        packed,
        layout,
        advantages[:, None],
        TEMPERATURE,
        completion_lengths=lengths_of(end_token)[pairs][:, None],
        reference=Reference(TEMPERATURE * q_theta[states], Head(torch.eye(V, dtype=torch.float64))),
        kl_weight=kl_weight,
        generated_tokens=n,  # so that the sum is the mean over samples, per completion and not per token
    )
    (by_row,) = torch.autograd.grad(found.loss, hidden, retain_graph=True)
    probability = log_probabilities(theta).detach().exp()[pairs].prod(1)
    return torch.autograd.grad(hidden, theta, probability[:, None, None] * by_row)[0]


@pytest.mark.parametrize("end_token", [None, 3])
@pytest.mark.parametrize("kl_weight", [0.0, 1 / BETA])
def test_the_loss_is_an_unbiased_gradient_of_the_regularised_objective(kl_weight: float, end_token: int | None) -> None:
    theta, q_theta = normal(4, 1 + V, V).requires_grad_(), normal(5, 1 + V, V)
    features, target = random_features(end_token), normal(6, 6)
    mean = log_probabilities(theta).exp() @ features
    objective = (mean - target).square().sum() + kl_weight * kl_of_completions(theta, q_theta, end_token)
    (exact,) = torch.autograd.grad(objective, theta)
    found = expected_loss_gradient(theta, q_theta, features, target, kl_weight, end_token)
    torch.testing.assert_close(found, exact, rtol=1e-5, atol=1e-6)  # the weights of tokens are float32


def regularised_optimum(q: Tensor, features: Tensor, target: Tensor) -> Tensor:
    """argmin over the simplex of ||E_rho phi - v||^2 + KL(rho || q) / beta, by quasi-Newton steps."""
    logits = q.log().clone().requires_grad_()
    optimiser = torch.optim.LBFGS(
        [logits],
        max_iter=2000,
        tolerance_grad=1e-13,
        tolerance_change=0,
        history_size=50,
        line_search_fn="strong_wolfe",
    )

    def objective() -> Tensor:
        optimiser.zero_grad()
        log_rho = logits.log_softmax(0)
        rho = log_rho.exp()
        value = (rho @ features - target).square().sum() + (rho * (log_rho - q.log())).sum() / BETA
        value.backward()
        return value

    optimiser.step(objective)
    return logits.detach().softmax(0)


def as_parameters(rho: Tensor) -> Tensor:
    """The autoregressive logits [6, 5] of a distribution over the 25 completions."""
    joint = rho.view(V, V)
    return torch.cat([joint.sum(1)[None], joint / joint.sum(1, keepdim=True)]).log()


def test_the_regularised_optimum_is_an_exponential_tilt_and_the_loss_rests_there() -> None:
    q_theta, features, p = normal(7, 1 + V, V), normal(8, COUNT, 6), normal(9, COUNT).softmax(0)
    q, target = log_probabilities(q_theta).exp(), p @ features
    rho = regularised_optimum(q, features, target)

    # rho is proportional to q exp(-chi . phi) with chi = 2 beta (E_rho phi - v).
    chi = 2 * BETA * (rho @ features - target)
    tilted = (q.log() - features @ chi).softmax(0)
    torch.testing.assert_close(rho, tilted, rtol=1e-6, atol=1e-9)
    assert chi.norm() > 0.1
    assert (rho - q).abs().max() > 0.01

    at_optimum = expected_loss_gradient(as_parameters(rho), q_theta, features, target, 1 / BETA, None)
    at_start = expected_loss_gradient(q_theta, q_theta, features, target, 1 / BETA, None)
    assert at_optimum.abs().max() < 1e-6
    assert at_start.abs().max() > 1e-2


# ---- (c) one-hot features: the optimum is the data distribution --------------------------------------------


def test_with_one_hot_features_the_loss_leads_to_the_data_distribution() -> None:
    n = 3
    data = torch.tensor([0.4, 0.25, 0.15, 0.12, 0.08], dtype=torch.float64)
    tuples = all_tuples(V, n)
    one_hot = torch.eye(V, dtype=torch.float64)
    generated = one_hot[tuples].expand(V, -1, -1, -1)  # [truths, tuples, n, D]
    truths = one_hot[:, None].expand(-1, len(tuples), -1)
    advantages = leave_one_out_advantages(*feature_matching_rewards(generated, truths, whitening="none"))
    over_truths = torch.einsum("y,ytj->tj", data, advantages)

    def gradient(logits: Tensor) -> Tensor:
        logits = logits.detach().requires_grad_()
        return expected_estimator(logits.log_softmax(0), logits, tuples, over_truths)

    assert gradient(data.log()).abs().max() < 1e-12
    for seed in (10, 11):
        logits = normal(seed, V)
        assert gradient(logits).abs().max() > 1e-2
        for _ in range(1500):
            logits = logits - 5 * gradient(logits)
        torch.testing.assert_close(logits.softmax(0), data, rtol=1e-6, atol=1e-8)
