"""Progress in a log file: a line a minute with the time left, and nothing for what is quick."""

from __future__ import annotations

import logging

import pytest

from ebft.runtime import progress as module
from ebft.runtime.progress import duration, progress, tracked


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_a_line_a_minute_with_the_time_left(clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ebft")
    with progress("scoring", 100, done=20) as advance:
        for _ in range(8):
            clock[0] += 30
            advance(10)
    # 10 take 30 s: after 60 s there are 60 left, which take 180 s.
    assert caplog.messages == [
        "scoring: 20 of 100",
        "scoring: 40 of 100, 3 min left",
        "scoring: 60 of 100, 2 min left",
        "scoring: 80 of 100, 60 s left",
        "scoring: 100 of 100, 0 s left",
        "scoring: 100 of 100, after 4 min",
    ]


def test_what_is_quick_says_nothing(clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ebft")
    assert list(tracked(iter("abc"), "tokenising", 3)) == ["a", "b", "c"]
    assert caplog.messages == []


def test_what_says_that_it_began_says_that_it_ended(clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ebft")
    with progress("held-out sequences", 14) as advance:
        clock[0] += 3
        advance(14)
    assert caplog.messages == ["held-out sequences: 0 of 14", "held-out sequences: 14 of 14, after 3 s"]


def test_without_a_total_there_is_no_time_left(clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ebft")
    for _ in tracked(range(2), "tokenising", None):
        clock[0] += 3000
    assert caplog.messages == ["tokenising: 1", "tokenising: 2", "tokenising: 2, after 1.7 h"]


def test_durations() -> None:
    assert [duration(s) for s in (0, 0.0123, 2.11, 9.99)] == ["0 s", "0.012 s", "2.1 s", "10 s"]
    assert [duration(s) for s in (99, 119, 5999, 7200, 4e6)] == ["99 s", "2 min", "100 min", "2.0 h", "1,111 h"]
