"""What of the library's messages reaches standard error."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ebft.runtime.messages import duration, plot_label, progress, show_messages, tracked

logger = logging.getLogger("ebft.somewhere.inside")


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Handlers and level of the library as they were, whoever ran before."""
    root = logging.getLogger("ebft")
    before = (list(root.handlers), root.level, root.propagate)
    root.handlers.clear()
    yield
    root.handlers[:], root.propagate = before[0], before[2]
    root.setLevel(before[1])


def say() -> None:
    for level in ("debug", "info", "warning", "error"):
        getattr(logger, level)("%s message", level)


@pytest.mark.parametrize(
    ("level", "shown"),
    [
        ("debug", ["debug message", "info message", "note: warning message", "note: error message"]),
        ("info", ["info message", "note: warning message", "note: error message"]),
        ("warning", ["note: warning message", "note: error message"]),
        ("error", ["note: error message"]),
        ("critical", []),
        ("passive", ["info message", "note: warning message", "note: error message"]),  # a word of transformers
    ],
)
def test_levels_and_prefix(level: str, shown: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    show_messages(level)
    say()
    printed = capsys.readouterr()
    assert printed.err.splitlines() == shown
    assert printed.out == ""


def test_messages_are_shown_once_however_often_it_is_called(capsys: pytest.CaptureFixture[str]) -> None:
    for level in ("info", "debug", "info"):
        show_messages(level)
    logger.info("once")
    assert capsys.readouterr().err == "once\n"


def test_standard_error_may_change(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    show_messages()
    other = io.StringIO()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", other)
        logger.info("there")
    logger.info("here")
    assert other.getvalue() == "there\n"
    assert capsys.readouterr().err == "here\n"


def test_without_a_command_the_user_of_the_library_decides(caplog: pytest.LogCaptureFixture) -> None:
    """No handler of ours, and messages reach the root logger's."""
    logging.getLogger("ebft").propagate = True
    with caplog.at_level(logging.INFO, logger="ebft"):
        logger.info("for the user's own handlers")
    assert "for the user's own handlers" in caplog.messages
    assert not any(type(handler).__module__.startswith("ebft") for handler in logging.getLogger("ebft").handlers)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    return now


def test_in_a_log_file_a_line_a_minute(clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ebft")
    with progress("scoring", 1000, done=200) as advance:
        for _ in range(8):
            clock[0] += 30
            advance(100)
    assert [line.partition(" [")[0] for line in caplog.messages] == [
        *(f"scoring: {n} of 1000" for n in (200, 400, 600, 800)),
        "scoring: 1000 of 1000",
        "scoring: 1000 of 1000",
    ]
    assert caplog.messages[1].endswith("[01:00<03:00,  3.33it/s]")


def test_what_is_quick_says_nothing_if_it_leaves_nothing(clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ebft")
    assert list(tracked(iter("abc"), "tokenising", 3)) == ["a", "b", "c"]
    assert caplog.messages == []
    with progress("held-out sequences", 14) as advance:
        advance(14)
    assert [line.partition(" [")[0] for line in caplog.messages] == [f"held-out sequences: {n} of 14" for n in (0, 14)]


def test_without_a_total_there_is_no_time_left(clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ebft")
    for _ in tracked(range(2), "tokenising", None):
        clock[0] += 3000
    assert caplog.messages[0] == "tokenising: 1 [50:00, 3000.00s/it]"


def test_durations() -> None:
    assert [duration(s) for s in (0, 0.0123, 2.11, 9.99)] == ["0 s", "0.012 s", "2.1 s", "10 s"]
    assert [duration(s) for s in (99, 119, 5999, 7200, 4e6)] == ["99 s", "2 min", "100 min", "2.0 h", "1,111 h"]


@pytest.mark.pictures
def test_names_in_pictures_are_no_formulas(tmp_path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots()
    for name in (r"$\frac{$", r"_hidden$\input{/etc/passwd}$", "\x1b[31m"):
        axis.plot([0, 1], label=plot_label(name))
    assert len(axis.legend().get_texts()) == 3
    figure.savefig(tmp_path / "picture.png")
    plt.close(figure)
