"""The EBFT loss: which hidden rows predict what, and with which weight.

    L = -mean over generated tokens (A_j log p_tau(y_hat_jg | ...))
        + gamma * mean over truth tokens (-log p_1(x_t | ...))
        [+ kl_weight * KL(p_tau || q_tau), the sequence-level divergence from a frozen model q]

A row predicts the next token of all samples that share its prefix: an anchor's the first token of all n, and in a tree
a node's those of its children. Every term goes through the one weighted cross-entropy of cross_entropy.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ebft.method.cross_entropy import Head, Reference, Rows, weighted_cross_entropy
from ebft.method.layout import PackedLayout


@dataclass(frozen=True)
class LossTerms:
    """One step's loss and what is worth logging about it (all detached but `loss`)."""

    loss: Tensor
    policy: Tensor  # -mean(A log p): minus the covariance of the two at an anchor; small, and no measure of progress
    cross_entropy: Tensor  # mean over truth tokens at temperature 1; NaN if gamma is 0
    kl: Tensor | None  # mean over generated tokens
    log_probs: Tensor  # [b, B, n, G] of the sampled tokens at the sampling temperature
    entropy: Tensor  # mean over generated tokens, of the distribution they were drawn from
    generated_tokens: Tensor  # how many count
    truth_tokens: Tensor


def ebft_loss(
    hidden: Tensor,
    head: Head,
    packed_ids: Tensor,
    layout: PackedLayout,
    advantages: Tensor,
    temperature: float,
    gamma: float = 0.0,
    completion_lengths: Tensor | None = None,
    reference: Reference | None = None,
    kl_weight: float = 0.0,
    generated_tokens: Tensor | float | None = None,
    truth_tokens: Tensor | float | None = None,
    chunk_rows: int | None = None,
) -> LossTerms:
    """The EBFT loss from the hidden states of a packed pass.

    Args:
        hidden: last hidden states [b, S, H], after the final norm.
        packed_ids: [b, S].
        advantages: [b, B, n]; constants here.
        temperature: the one the completions were drawn at, above 0.
        gamma: weight of the cross-entropy on truth tokens.
        completion_lengths: [b, B, n], tokens that count; all G if None.
        reference: hidden states [b, S, H] and head of the frozen model q; with `kl_weight`.
        kl_weight: of the divergence from q: 1/beta in the paper, beta in TRL.
        generated_tokens, truth_tokens: what to divide the two sums by, where a batch is part of a larger one
            (gradient accumulation, several processes). Default: this batch's own counts.
    """
    b, T = packed_ids.shape[0], layout.context_length
    device = hidden.device
    layout = layout.to(device)
    counted = counted_tokens(layout, b, completion_lengths)  # [b, B, n, G]
    truth_mask = layout.truth_mask.expand(b, T)[:, 1:]
    count_generated, count_truth = counted.sum(), truth_mask.sum()
    per_generated = _inverse(count_generated if generated_tokens is None else generated_tokens, device)
    per_truth = _inverse(count_truth if truth_tokens is None else truth_tokens, device)

    wanted = counted if layout.predicted is None else counted & layout.predicted
    predictors = _Predictors(layout, gamma != 0, wanted)
    hidden_rows = predictors.hidden(hidden)
    targets = predictors.per_row(layout.completions(packed_ids), packed_ids[:, 1:T])
    row_temperature = torch.ones(len(targets), device=device)
    row_temperature[: predictors.policy_rows] = temperature
    # `where`, not a product: what stands at dropped anchors may be anything, NaN included.
    token_advantages = torch.where(counted, advantages.detach().float()[..., None], 0.0)
    token_weights = token_advantages * per_generated
    kl_weights: Tensor | None = None
    reference_rows: Reference | None = None
    if reference is not None and kl_weight != 0:
        reference_rows = Reference(predictors.hidden(reference.hidden).detach(), reference.head)
        token_kl_weights = kl_weight * per_generated * counted
        with torch.no_grad():
            rows = Rows(targets, torch.zeros_like(targets, dtype=torch.float32), row_temperature)
            kl_rows = weighted_cross_entropy(hidden_rows, head, rows, reference_rows, chunk_rows).kl
        assert kl_rows is not None
        token_weights = token_weights - _kl_to_go(predictors.per_token(kl_rows), counted) * token_kl_weights
        kl_weights = predictors.per_row(token_kl_weights).sum(1)

    truth_weights = gamma * per_truth * truth_mask
    rows = Rows(targets, predictors.per_row(token_weights, truth_weights), row_temperature, kl_weights)
    results = weighted_cross_entropy(hidden_rows, head, rows, reference_rows, chunk_rows)
    log_probs = predictors.per_token(results.log_probs)

    def mean_over_generated(values: Tensor) -> Tensor:
        return (values * counted).sum() * per_generated

    cross_entropy = torch.full((), float("nan"), device=device)
    if gamma != 0:
        of_truth = results.log_probs[predictors.policy_rows :, 0].view(b, -1)
        cross_entropy = -(of_truth * truth_mask).sum() * per_truth
    return LossTerms(
        loss=results.loss,
        policy=-mean_over_generated(token_advantages * log_probs),
        cross_entropy=cross_entropy,
        kl=None if results.kl is None else mean_over_generated(predictors.per_token(results.kl)),
        log_probs=log_probs,
        entropy=mean_over_generated(predictors.per_token(results.entropy)),
        generated_tokens=count_generated,
        truth_tokens=count_truth,
    )


class _Predictors:
    """The rows of a packed sequence that predict something, in the order they go through the loss.

    1. Rows that predict tokens of completions. In the context they belong to an anchor: the row before it predicts the
       first token of all its samples, rows after it what follows where samples begin like the truth. The others are
       nodes. Each predicts the next token of all samples that share its prefix.
    2. With gamma, b*(T-1) context rows, each predicting the next token of the truth.

    Every row has n places for targets, one per sample; rows of kind 2 use the first. Rows that predict nothing take no
    part; a few may be there for no reason but that the device alone knows their exact number.
    """

    def __init__(self, layout: PackedLayout, with_truth: bool, wanted: Tensor) -> None:
        """wanted: bool [b, B, n, G], the tokens of completions that are to be predicted."""
        T, S, (b, B, n, G) = layout.context_length, layout.packed_length, wanted.shape
        self.layout, self.truth_rows = layout, b * (T - 1) if with_truth else 0
        device = wanted.device
        slots = layout.predictor_slots.expand(b, -1, -1, -1)
        # A place for every row there could be: G of each anchor in the context, then the nodes.
        places, steps = B * G + S - T, torch.arange(G, device=device)
        own = torch.arange(B, device=device)[:, None, None] * G + steps
        place = torch.where(slots < T, own, B * G + slots - T)
        place = place + torch.arange(b, device=device)[:, None, None, None] * places
        used = torch.zeros(b * places + 1, dtype=torch.bool, device=device)
        used.scatter_(0, torch.where(wanted, place, b * places).flatten(), True)  # the last takes what is not wanted
        self.policy_rows = b * B * (1 + n * (G - 1)) if layout.predicting_rows is None else layout.predicting_rows
        chosen = torch.nonzero_static(used[:-1], size=self.policy_rows, fill_value=0)[:, 0]
        in_context = (layout.anchors.expand(b, B)[..., None] - 1 + steps).flatten(1)
        slot_of_place = torch.cat([in_context, torch.arange(T, S, device=device).expand(b, -1)], 1)
        slot_of_place = slot_of_place + torch.arange(b, device=device)[:, None] * S
        self.rows = slot_of_place.flatten()[chosen]  # of [b*S]
        # Of every token, the row that predicts it; one too many for the unwanted.
        self.row = torch.where(wanted, (used.cumsum(0) - 1)[place], self.policy_rows)
        self.sample = torch.arange(n, device=device)[:, None]  # and its place there

    def hidden(self, hidden: Tensor) -> Tensor:
        """[b, S, H] -> [R, H]."""
        policy = hidden.flatten(0, 1).index_select(0, self.rows)
        if not self.truth_rows:
            return policy
        return torch.cat([policy, hidden[:, : self.layout.context_length - 1].flatten(0, 1)])

    def per_row(self, per_token: Tensor, per_truth: Tensor | None = None) -> Tensor:
        """Values of generated tokens [b, B, n, G] and truth tokens [b, T-1] -> [R, n]; 0 where there is none."""
        n = self.layout.samples
        values = per_token.new_zeros(self.policy_rows + 1, n)
        values[self.row, self.sample] = per_token
        of_truth = per_token.new_zeros(self.truth_rows, n)
        if self.truth_rows and per_truth is not None:
            of_truth[:, 0] = per_truth.flatten()
        return torch.cat([values[:-1], of_truth])

    def per_token(self, per_row: Tensor) -> Tensor:
        """[R, n], or [R] for what a row has once, -> [b, B, n, G]; 0 for what was not wanted."""
        if per_row.dim() == 1:
            per_row = per_row[:, None].expand(-1, self.layout.samples)
        policy = torch.nn.functional.pad(per_row[: self.policy_rows], (0, 0, 0, 1))
        return policy[self.row, self.sample]


def _kl_to_go(kl: Tensor, counted: Tensor) -> Tensor:
    """sum_{g' > g} KL_g', [b, B, n, G]: a token's choice changes the prefixes after it, and the divergence of
    completions is E sum_g KL_g. The mean over the other samples is taken off, which does not depend on the sample."""
    kl = kl * counted
    to_go = kl.flip(-1).cumsum(-1).flip(-1) - kl
    n = kl.shape[2]
    return to_go if n == 1 else to_go - (to_go.sum(2, keepdim=True) - to_go) / (n - 1)


def counted_tokens(layout: PackedLayout, batch_size: int, completion_lengths: Tensor | None = None) -> Tensor:
    """bool [b, B, n, G]: tokens of valid anchors, up to the end token of their completion."""
    n, B, G = layout.samples, layout.num_anchors, layout.horizon
    counted = layout.anchor_mask.expand(batch_size, B)[..., None, None].expand(-1, -1, n, G)
    if completion_lengths is not None:
        counted = counted & (torch.arange(G, device=counted.device) < completion_lengths[..., None])
    return counted


def _inverse(count: Tensor | float, device: torch.device) -> Tensor:
    if not isinstance(count, Tensor):
        count = torch.full((), count, device=device)  # filled on the device: copying would wait for it
    return 1.0 / count.to(device=device, dtype=torch.float32).clamp(min=1)
