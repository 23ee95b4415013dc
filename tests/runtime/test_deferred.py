"""Checks on numbers: at once on a CPU, once they have arrived from a GPU."""

from __future__ import annotations

import pytest
import torch

from ebft.runtime.deferred import DeferredChecks


def test_on_a_cpu_a_check_is_made_at_once() -> None:
    checks, seen = DeferredChecks(), []
    value = torch.tensor(2.5, requires_grad=True)
    checks.add(value, seen.append)
    assert seen == [2.5]
    checks.run(wait=True)
    assert seen == [2.5], "and only once"


def test_an_error_of_a_check_reaches_the_caller() -> None:
    def refuse(value: float) -> None:
        raise RuntimeError(f"{value} is too much")

    with pytest.raises(RuntimeError, match=r"3\.0 is too much"):
        DeferredChecks().add(torch.tensor(3.0), refuse)


@pytest.mark.cuda
def test_on_a_gpu_checks_are_made_in_order_when_the_numbers_are_there() -> None:
    checks, seen = DeferredChecks(), []
    for number in range(3):
        checks.add(torch.tensor(float(number), device="cuda"), seen.append)
    checks.run(wait=True)
    assert seen == [0.0, 1.0, 2.0]


def test_numbers_that_are_under_way_are_waited_for_on_demand_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for the GPU: tensors that say they are there, and events that have not happened yet."""
    happened: list[bool] = []

    class Event:
        def record(self) -> None: ...
        def query(self) -> bool:
            return bool(happened)

        def synchronize(self) -> None:
            happened.append(True)

    class OnGpu(torch.Tensor):
        is_cuda = True

        def detach(self) -> torch.Tensor:
            return self

    monkeypatch.setattr(torch.cuda, "Event", Event)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *args, pin_memory=False, **kwargs: empty(*args, **kwargs))
    checks, seen = DeferredChecks(), []
    checks.add(torch.tensor(7.0).as_subclass(OnGpu), seen.append)
    checks.run()
    assert seen == []
    checks.run(wait=True)
    assert seen == [7.0]
