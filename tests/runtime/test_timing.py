"""Phases are added up by name, and checks wait for their numbers; stand-ins for the clock and for a GPU."""

from __future__ import annotations

import pytest
import torch

from ebft.runtime import timing
from ebft.runtime.timing import Clock, DeferredChecks


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be changed by the test."""
    time = [100.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: time[0])
    return time


def test_phases_add_up_and_a_reading_starts_anew(now: list[float]) -> None:
    clock = Clock(torch.device("cpu"))
    for seconds in (1.0, 2.0):
        with clock.phase("rollout"):
            now[0] += seconds
        now[0] += 50  # belongs to no phase
    start = clock.mark()
    now[0] += 0.5
    clock.add("optimizer", start)
    assert clock.read() == {"rollout": 3.0, "optimizer": 0.5}
    assert clock.read() == {}


def test_phases_may_lie_in_each_other(now: list[float]) -> None:
    clock = Clock(torch.device("cpu"))
    with clock.phase("all"):
        now[0] += 1
        with clock.phase("part"):
            now[0] += 2
    assert clock.read() == {"part": 2.0, "all": 3.0}


@pytest.mark.cuda
def test_a_gpu_is_timed_by_events() -> None:
    clock = Clock(torch.device("cuda"))
    with clock.phase("product"):
        torch.ones(512, 512, device="cuda") @ torch.ones(512, 512, device="cuda")
    assert clock.read()["product"] > 0
    assert clock.read() == {}


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
