"""The output head, and one weighted cross-entropy over rows of hidden states, in chunks: the only place where log-probs
are made. Sampling and training share the head, so that the log-probs of a sample are the same in both.

The loss is linear in log-probs with weights known beforehand, so the gradient of a chunk of logits is known as
soon as the chunk is: it is formed in the forward pass, and only the gradients of hidden rows and head are kept. A
chunk of logits lives for one turn of a loop, and none is made again in backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ebft.method.sampling import fused, masses_by_block


@dataclass(frozen=True)
class Head:
    """z = scale * (h W^T + bias), then softcap * tanh(z / softcap) if the model has a soft-cap."""

    weight: Tensor  # [V, H], tied to the embeddings or not
    bias: Tensor | None = None  # [V]
    scale: float = 1.0
    softcap: float | None = None
    ready: bool = False  # the weight is in the precision of the product already

    def prepared(self, hidden: Tensor) -> Head:
        """The same head with its weight in the precision `logits` multiplies in: once, for many chunks of rows."""
        if self.ready:
            return self
        dtype = self.compute_dtype(hidden)
        weight = self.weight.to(dtype)
        if not hidden.is_cuda:
            weight = weight.to(torch.promote_types(dtype, torch.float32))  # a CPU cannot multiply bf16 into float32
        return replace(self, weight=weight, ready=True)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [R, V] of hidden rows [R, H], in float32 (float64 for float64 rows)."""
        weight = self.prepared(hidden).weight
        hidden = hidden.to(self.compute_dtype(hidden)).to(weight.dtype)
        # In at least float32: rounding logits to bf16 would cost the log-probs two digits.
        with torch.autocast(hidden.device.type, enabled=False):
            if hidden.dtype in (torch.float32, torch.float64):
                z = hidden @ weight.t()
            elif hidden.is_cuda and not torch.is_grad_enabled():
                z = torch.mm(hidden, weight.t(), out_dtype=torch.float32)
            else:
                z = hidden.float() @ weight.t().float()
        if self.bias is not None:
            z = z + self.bias.to(z.dtype)
        if self.scale != 1.0:
            z = z * self.scale
        return self.softcap * torch.tanh(z / self.softcap) if self.softcap is not None else z

    def compute_dtype(self, hidden: Tensor) -> torch.dtype:
        """The matrix product's: autocast's if that is on, else that of the hidden states."""
        device = hidden.device.type
        return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype


# Logits alive at once, in elements: 32 MiB of float32 on a CPU, whose caches reward small chunks, 1 GiB on a GPU.
CHUNK_ELEMENTS = {"cpu": 2**23, "cuda": 2**28}


def rows_per_chunk(head: Head, device: torch.device) -> int:
    """How many rows of logits may be alive at once: as many as the width of the head at the least, which makes them no
    larger than the gradient of the head that every chunk is added to."""
    budget = CHUNK_ELEMENTS.get(device.type, CHUNK_ELEMENTS["cpu"])
    return max(1, budget // len(head.weight), head.weight.shape[1])


@dataclass(frozen=True)
class Rows:
    """What is asked of each of R hidden rows: m targets with weights, at the row's temperature."""

    targets: Tensor  # long [R, m]
    weights: Tensor  # float [R, m]; the loss is sum(weights * -log p)
    temperature: Tensor  # float [R]
    kl_weights: Tensor | None = None  # float [R]; adds sum(kl_weights * KL(p || q)) at the row's temperature


@dataclass(frozen=True)
class Reference:
    """The frozen model q of the KL term: its hidden rows [R, H] and its head."""

    hidden: Tensor
    head: Head


@dataclass(frozen=True)
class RowResults:
    loss: Tensor  # scalar, differentiable
    log_probs: Tensor  # [R, m] of the targets, at the row's temperature
    entropy: Tensor  # [R] of the row's distribution
    kl: Tensor | None  # [R]


def weighted_cross_entropy(
    hidden: Tensor, head: Head, rows: Rows, reference: Reference | None = None, chunk_rows: int | None = None
) -> RowResults:
    """sum over rows and targets of weight * (-log p), plus the weighted KL terms if a reference is given."""
    chunk_rows = chunk_rows or rows_per_chunk(head, hidden.device)
    loss, log_probs, entropy, kl = _WeightedCrossEntropy.apply(
        hidden, head.weight, head.bias, head, rows, reference, chunk_rows, torch.is_grad_enabled()
    )
    return RowResults(loss, log_probs, entropy, kl if reference is not None else None)


class _WeightedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        head: Head,
        rows: Rows,
        reference: Reference | None,
        chunk_rows: int,
        grad_enabled: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        wanted = [grad_enabled and x is not None and x.requires_grad for x in (hidden, weight, bias)]
        full, dtype = torch.promote_types(hidden.dtype, torch.float32), head.compute_dtype(hidden)
        grad_hidden = torch.zeros_like(hidden) if wanted[0] else None
        grad_weight = torch.zeros_like(weight, dtype=full) if wanted[1] else None
        grad_bias = torch.zeros_like(bias, dtype=full) if wanted[2] and bias is not None else None
        R, log_probs = len(hidden), hidden.new_empty(rows.targets.shape, dtype=full)
        entropy, kl = hidden.new_empty(R, dtype=full), hidden.new_zeros(R, dtype=full)

        weight_c = weight.to(dtype)  # once for all chunks, as all that follows
        head = replace(head, weight=weight, ready=False).prepared(hidden)
        if reference is not None:
            reference_head = reference.head.prepared(reference.hidden)
        for start in range(0, R, chunk_rows):
            at = slice(start, start + chunk_rows)
            hidden_c = hidden[at].to(dtype)
            targets, weights = rows.targets[at], rows.weights[at].to(full)
            temperature = rows.temperature[at, None]
            logits = head.logits(hidden_c)
            if _fuse(logits, head, reference):
                log_sum, log_probs[at], entropy[at] = fused(row_statistics, [logits, temperature, targets])
                if not any(wanted):
                    continue
                parts = (logits, head, temperature, log_sum, log_probs[at], targets, weights)
                gradient = fused_gradient(*parts, dtype)
            else:
                # Passes over a chunk of logits are what this costs beside its products: in place where possible.
                scaled = logits / temperature if head.softcap is not None else logits.div_(temperature)
                log_p = torch.log_softmax(scaled, -1)
                log_probs[at] = log_p.gather(1, targets)
                p = torch.exp(log_p, out=scaled)
                entropy[at] = -torch.linalg.vecdot(p, log_p)
                if reference is not None:
                    log_q = torch.log_softmax(reference_head.logits(reference.hidden[at]) / temperature, -1)
                    log_ratio = log_p - log_q
                    kl[at] = torch.linalg.vecdot(p, log_ratio)
                if not any(wanted):
                    continue
                # d/dz of sum_m w_m (-log p[y_m]) is ((sum_m w_m) p - sum_m w_m onehot(y_m)) / temperature.
                if reference is not None and rows.kl_weights is not None:
                    per_token = weights.sum(1, keepdim=True) + rows.kl_weights[at, None] * (log_ratio - kl[at, None])
                    gradient = p.mul_(per_token.div_(temperature))
                else:
                    gradient = p.mul_(weights.sum(1, keepdim=True) / temperature)
                gradient.scatter_add_(1, targets, -weights / temperature)
                if head.softcap is not None:
                    gradient = gradient * (1 - (logits / head.softcap).square())
                gradient = gradient * head.scale if head.scale != 1.0 else gradient
                del scaled, log_p, p
            if grad_bias is not None:
                grad_bias += gradient.sum(0, dtype=full)
            gradient = gradient.to(dtype)
            if grad_hidden is not None:
                with torch.autocast(gradient.device.type, enabled=False):
                    grad_hidden[at] = (gradient @ weight_c).to(grad_hidden.dtype)
            if grad_weight is not None:
                if dtype == full:
                    grad_weight.addmm_(gradient.t(), hidden_c)
                elif gradient.is_cuda:
                    with torch.autocast("cuda", enabled=False):
                        torch.addmm(grad_weight, gradient.t(), hidden_c, out_dtype=full, out=grad_weight)
                else:
                    grad_weight += gradient.t() @ hidden_c  # rounded once a chunk, like every other weight's gradient
            del logits, gradient  # before the next chunk of logits is made

        loss = -(rows.weights * log_probs).sum()
        if rows.kl_weights is not None:
            loss = loss + (rows.kl_weights * kl).sum()
        ctx.grads = [grad_hidden, grad_weight, grad_bias]
        ctx.dtypes = (hidden.dtype, weight.dtype, None if bias is None else bias.dtype)
        ctx.mark_non_differentiable(log_probs, entropy, kl)
        return loss, log_probs, entropy, kl

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        # Not kept, the head's gradient being as large as the head; so there is no second time.
        grads = tuple(
            None
            if g is None
            else torch.mul(g, grad_loss, out=g if g.dtype == dtype else g.new_empty(g.shape, dtype=dtype))
            for g, dtype in zip(ctx.grads, ctx.dtypes, strict=True)
        )
        ctx.grads = None
        return (*grads, None, None, None, None, None)


@torch.no_grad()
def log_probs_at_temperatures(hidden: Tensor, head: Head, targets: Tensor, temperatures: Sequence[float]) -> Tensor:
    """log p of one target of each row [R] at each temperature, [R, temperatures]: logits are made once for all."""
    head = head.prepared(hidden)
    found = hidden.new_empty(len(targets), len(temperatures), dtype=torch.promote_types(hidden.dtype, torch.float32))
    chunk_rows = rows_per_chunk(head, hidden.device)
    for start in range(0, len(targets), chunk_rows):
        at = slice(start, start + chunk_rows)
        logits = head.logits(hidden[at])
        logits -= logits.amax(-1, keepdim=True)
        of_target = logits.gather(1, targets[at, None])[:, 0]
        scaled = torch.empty_like(logits) if len(temperatures) > 1 else logits
        for column, temperature in enumerate(temperatures):
            mass = torch.mul(logits, 1 / temperature, out=scaled).exp_().sum(-1)
            found[at, column] = of_target / temperature - mass.log()
        del logits, scaled  # before the next chunk is made
    return found


def _fuse(logits: Tensor, head: Head, reference: Reference | None) -> bool:
    return logits.is_cuda and head.softcap is None and reference is None


def row_statistics(logits: Tensor, temperature: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The log-sum-exp of each row [R, 1], the log-probs of its targets [R, m] and its entropy [R]; for a compiler."""
    highest, masses, entropy = masses_by_block(logits / temperature)
    log_sum = highest + masses.sum(-1, keepdim=True).log()
    return log_sum, logits.gather(1, targets) / temperature - log_sum, entropy


def fused_gradient(
    logits: Tensor,
    head: Head,
    temperature: Tensor,
    log_sum: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    weights: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """d loss / d (h W^T + bias) of a chunk, for a head without soft-cap: one read of the logits, one write in `dtype`.

    The targets' entries are made apart in full precision: their two parts cancel where the model is sure.
    """
    factor = head.scale / temperature
    total = weights.sum(1, keepdim=True)
    gradient = fused(_expected_part, [logits, temperature, log_sum, factor * total], dtype)
    same = targets[:, :, None] == targets[:, None, :]
    of_target = torch.where(same, weights[:, None, :], 0.0).sum(-1)  # a target may stand there several times
    return gradient.scatter_(1, targets, ((total * log_probs.exp() - of_target) * factor).to(dtype))


def _expected_part(logits: Tensor, temperature: Tensor, log_sum: Tensor, factor: Tensor, dtype: torch.dtype) -> Tensor:
    return (torch.exp(logits / temperature - log_sum) * factor).to(dtype)
