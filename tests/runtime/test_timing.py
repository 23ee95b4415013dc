"""Phases are added up by name; a stand-in for the clock says what time it is."""

from __future__ import annotations

import pytest
import torch

from ebft.runtime import timing
from ebft.runtime.timing import Clock


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
