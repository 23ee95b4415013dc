"""The theory, with every expectation enumerated: no sampling, no tolerance for bias.

The policy writes two tokens from a vocabulary of five, so there are 25 completions. Its parameters are the
logits [6, 5]: row 0 for the first token, row 1 + a for the second token after a first token a.
"""

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


@pytest.mark.parametrize("alpha", [1.0, 0.5])
@pytest.mark.parametrize("n", [2, 3])
def test_the_policy_gradient_is_unbiased(n: int, alpha: float) -> None:
    """With the baseline and without; not with the mean reward of the others, which contains this sample."""
    features, truth, theta = normal(0, COUNT, 6), normal(1, 6), normal(2, 1 + V, V).requires_grad_()
    log_p, tuples = log_probabilities(theta), all_tuples(COUNT, n)
    objective = alpha * (log_p.exp() @ features - truth / alpha).square().sum()
    (exact,) = torch.autograd.grad(objective, theta, retain_graph=True)
    probability = log_p.detach().exp()[tuples].prod(1)

    def expected(advantages: Tensor) -> Tensor:
        """Sum over all tuples of their probability times -1/n sum_j A_j grad log p(y_j)."""
        weights = (probability[:, None] * advantages / n).flatten()
        per_completion = torch.zeros_like(log_p).index_add(0, tuples.flatten(), weights)
        return torch.autograd.grad(-(per_completion * log_p).sum(), theta, retain_graph=True)[0]

    truths = truth.expand(len(tuples), -1)
    alignment, diversity = feature_matching_rewards(features[tuples], truths, whitening="none")
    rewards = alignment - alpha * diversity
    for advantages in (rewards, leave_one_out_advantages(alignment, diversity, alpha)):
        torch.testing.assert_close(expected(advantages), exact, rtol=1e-9, atol=1e-11)
    naive = (rewards.sum(1, keepdim=True) - rewards) / (n - 1)
    assert (expected(rewards - naive) - exact).norm() > 0.05 * exact.norm()


# ---- the loss with KL regularisation -----------------------------------------------------------------------

BETA = 0.8
TEMPERATURE = 0.7


@pytest.mark.parametrize("end_token", [None, 3])
@pytest.mark.parametrize("kl_weight", [0.0, 1 / BETA])
def test_the_loss_is_an_unbiased_gradient_of_the_regularised_objective(kl_weight: float, end_token: int | None) -> None:
    """The expectation of the gradient of `ebft_loss` over all pairs of completions, each a row of a batch: two context
    tokens, an anchor between them, two completions. Hidden states are logits (times the temperature) and the head is
    the identity: the gradient of each row is at hand and can be weighted by the probability of its pair."""
    theta, q_theta = normal(4, 1 + V, V).requires_grad_(), normal(5, 1 + V, V)
    features, target = normal(3, COUNT, 6), normal(6, 6)
    if end_token is not None:  # what differs only after the end token has the same features
        features[end_token * V : (end_token + 1) * V] = features[end_token * V].clone()
    # KL(p || q) between what the two models write up to the end token: the mean log-ratio over all outcomes.
    ratio = theta.log_softmax(-1) - q_theta.log_softmax(-1)
    of_outcome = [
        ratio[0, first] + (ratio[1 + first, second] if first != end_token else 0) for first, second in COMPLETIONS
    ]
    p = log_probabilities(theta).exp()
    objective = (p @ features - target).square().sum() + kl_weight * (p @ torch.stack(of_outcome))
    (exact,) = torch.autograd.grad(objective, theta)

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
    hidden, head = TEMPERATURE * theta[states], Head(torch.eye(V, dtype=torch.float64))
    loss = ebft_loss(
        *(hidden, head, packed, layout, advantages[:, None], TEMPERATURE),
        completion_lengths=None if end_token is None else torch.where(tokens[:, None, :, 0] == end_token, 1, 2),
        reference=Reference(TEMPERATURE * q_theta[states], head),
        kl_weight=kl_weight,
        generated_tokens=n,  # so that the sum is the mean over samples, per completion and not per token
    ).loss
    (by_row,) = torch.autograd.grad(loss, hidden, retain_graph=True)
    (found,) = torch.autograd.grad(hidden, theta, p.detach()[pairs].prod(1)[:, None, None] * by_row)
    torch.testing.assert_close(found, exact, rtol=1e-5, atol=1e-6)  # the weights of tokens are float32
