"""The chunked weighted cross-entropy against plain autograd through full logits."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ebft.method import cross_entropy
from ebft.method.cross_entropy import (
    Head,
    Reference,
    RowResults,
    Rows,
    log_probs_at_temperatures,
    weighted_cross_entropy,
)


@dataclass
class Problem:
    hidden: Tensor
    head: Head
    rows: Rows
    reference: Reference | None

    def leaves(self) -> dict[str, Tensor]:
        leaves = {"hidden": self.hidden, "weight": self.head.weight}
        return leaves if self.head.bias is None else {**leaves, "bias": self.head.bias}


def random_problem(seed: int, R=9, V=7, D=4, m=3, bias=True, scale=0.7, softcap: Any = 2.5, kl=True) -> Problem:
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    head = Head(normal(V, D), normal(V) if bias else None, scale, softcap)
    rows = Rows(
        targets=torch.randint(0, V, (R, m), generator=g),
        weights=normal(R, m),
        temperature=0.3 + 1.5 * torch.rand(R, generator=g, dtype=torch.float64),
        kl_weights=normal(R) if kl else None,
    )
    reference = Reference(normal(R, D + 1), Head(normal(V, D + 1))) if kl else None
    problem = Problem(normal(R, D), head, rows, reference)
    for leaf in problem.leaves().values():
        leaf.requires_grad_()
    return problem


def plain_logits(hidden: Tensor, head: Head) -> Tensor:
    z = hidden @ head.weight.T
    z = head.scale * (z if head.bias is None else z + head.bias)
    return z if head.softcap is None else head.softcap * torch.tanh(z / head.softcap)


def plainly(problem: Problem) -> RowResults:
    """Row by row and target by target, everything differentiable."""
    rows, reference = problem.rows, problem.reference
    loss = torch.zeros((), dtype=torch.float64)
    log_probs, entropies, kls = torch.zeros_like(rows.weights), [], []
    for r, temperature in enumerate(rows.temperature):
        p = (plain_logits(problem.hidden[r], problem.head) / temperature).softmax(0)
        for i, target in enumerate(rows.targets[r]):
            log_p = p[target].log()
            loss = loss - rows.weights[r, i] * log_p
            log_probs[r, i] = log_p.detach()
        entropies.append(-sum(x * x.log() for x in p.detach()))
        if reference is not None and rows.kl_weights is not None:
            q = (plain_logits(reference.hidden[r], reference.head) / temperature).softmax(0)
            kl = (p * (p / q).log()).sum()
            kls.append(kl.detach())
            loss = loss + rows.kl_weights[r] * kl
    return RowResults(loss, log_probs, torch.stack(entropies), torch.stack(kls) if kls else None)


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    R=st.integers(1, 7),
    V=st.integers(1, 6),
    m=st.integers(1, 4),
    bias=st.booleans(),
    scale=st.sampled_from([1.0, 0.25]),
    softcap=st.sampled_from([None, 1.5]),
    kl=st.booleans(),
    chunk_rows=st.none() | st.integers(1, 8),
    frozen=st.sampled_from([None, "hidden", "weight", "bias"]),
    for_compiler=st.booleans(),
)
def test_value_and_gradients_for_every_kind_of_head(
    chunk_rows: int | None, frozen: str | None, for_compiler: bool, **given: Any
) -> None:
    """for_compiler: the form that is compiled on GPUs, for heads without soft-cap; here as it is."""
    if for_compiler:
        given |= {"softcap": None, "kl": False}
    problem = random_problem(**given)
    leaves = problem.leaves()
    if frozen in leaves:
        leaves.pop(frozen).requires_grad_(False)
    expected = plainly(problem)
    with pytest.MonkeyPatch.context() as patch:
        if for_compiler:
            patch.setattr(cross_entropy, "_fuse", lambda *_: True)
        found = weighted_cross_entropy(problem.hidden, problem.head, problem.rows, problem.reference, chunk_rows)
    for name, value in vars(expected).items():
        torch.testing.assert_close(getattr(found, name), value, msg=name)
    # A factor in front of the loss must reach the gradients.
    gradients = (torch.autograd.grad(3 * results.loss, list(leaves.values())) for results in (found, expected))
    torch.testing.assert_close(*gradients)


# ---- memory ------------------------------------------------------------------------------------------------


class LargestLogits(TorchDispatchMode):
    """The most elements that any tensor made under it holds, of those with a vocabulary dimension.

    Tensors of the head's own shape, [V, D] either way round and [V], are left out.
    """

    def __init__(self, V: int, D: int) -> None:
        super().__init__()
        self.V, self.of_the_head = V, {(V, D), (D, V), (V,)}
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else [out]:
            if isinstance(x, Tensor) and self.V in x.shape and tuple(x.shape) not in self.of_the_head:
                self.most = max(self.most, x.numel())
        return out


@pytest.mark.parametrize("kl", [False, True])
def test_no_more_logits_than_a_chunk_ever_exist(kl: bool) -> None:
    R, V, D, chunk_rows = 37, 101, 6, 4
    problem = random_problem(7, R=R, V=V, D=D, kl=kl)
    with LargestLogits(V, D) as plain_pass:
        torch.autograd.grad((problem.hidden @ problem.head.weight.T).softmax(-1)[:, 0].sum(), problem.hidden)
    assert plain_pass.most == R * V  # the instrument sees full logits where there are some
    if problem.reference is not None:
        problem.reference = Reference(problem.reference.hidden[:, :D], Head(torch.ones(V, D).double()))
    with LargestLogits(V, D) as chunked_pass:
        found = weighted_cross_entropy(problem.hidden, problem.head, problem.rows, problem.reference, chunk_rows)
        found.loss.backward()
    assert chunked_pass.most == chunk_rows * V


# ---- low precision -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("autocast", [False, True])
def test_bf16_rounds_the_inputs_of_the_product_and_not_the_logits(autocast: bool) -> None:
    """Whether they are in bf16 or made so by autocast: log-probs to float32's precision."""
    problem = random_problem(8, R=20, V=50, D=32, kl=False)

    def rounded(dtype: torch.dtype) -> Problem:
        def convert(x: Tensor) -> Tensor:
            return x.detach().bfloat16().to(dtype).requires_grad_()

        assert problem.head.bias is not None
        head = replace(problem.head, weight=convert(problem.head.weight), bias=convert(problem.head.bias))
        given = {name: getattr(problem.rows, name).float() for name in ("weights", "temperature")}
        return Problem(convert(problem.hidden), head, replace(problem.rows, **given), None)

    exact, low = rounded(torch.float64), rounded(torch.float32 if autocast else torch.bfloat16)
    expected = plainly(exact)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found = weighted_cross_entropy(low.hidden, low.head, low.rows, None, 6)
    assert found.log_probs.dtype == torch.float32
    torch.testing.assert_close(found.log_probs.double(), expected.log_probs.double(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.loss.double(), expected.loss, rtol=1e-5, atol=1e-4)
    found.loss.backward()
    expected.loss.backward()
    for name, leaf in low.leaves().items():
        assert leaf.grad.dtype == leaf.dtype
        true = exact.leaves()[name].grad
        assert (leaf.grad.double() - true).norm() < 0.01 * true.norm(), name


def test_the_form_for_a_compiler_keeps_small_gradients_of_sure_rows() -> None:
    """Where p is almost 1 the target's entry is a small difference: rounding it last keeps it."""
    logits = torch.tensor([[9.0, 0.0, 0.0]])
    weights, targets, ones = torch.ones(1, 1), torch.zeros(1, 1, dtype=torch.long), torch.ones(1, 1)
    log_sum, log_probs, _ = cross_entropy.row_statistics(logits, ones, targets)
    found = cross_entropy.fused_gradient(
        logits, Head(torch.zeros(3, 1)), ones, log_sum, log_probs, targets, weights, torch.bfloat16
    )
    expected = logits.softmax(-1) - torch.tensor([[1.0, 0, 0]])
    torch.testing.assert_close(found.float(), expected, rtol=1e-2, atol=0)


@pytest.mark.parametrize("softcap", [None, 2.5])
def test_log_probs_at_temperatures_are_log_softmax(softcap: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_entropy, "rows_per_chunk", lambda *_: 4)  # the last chunk is smaller
    problem = random_problem(3, softcap=softcap)
    targets, temperatures = problem.rows.targets[:, 0], (0.5, 1.0, 1.3)
    logits = plain_logits(problem.hidden, problem.head)
    expected = [torch.log_softmax(logits / t, -1).gather(1, targets[:, None])[:, 0] for t in temperatures]
    found = log_probs_at_temperatures(problem.hidden, problem.head, targets, temperatures)
    torch.testing.assert_close(found, torch.stack(expected, 1))
