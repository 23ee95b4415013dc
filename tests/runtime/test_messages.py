"""What of the library's messages reaches standard error."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator

import pytest

from ebft.runtime.messages import each_message_once, notes_if_it_succeeds, show_messages

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


def test_the_same_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    show_messages()
    with each_message_once():
        for words in ("first", "second", "first"):
            logger.warning(words)
    logger.warning("first")
    assert capsys.readouterr().err == "note: first\nnote: second\nnote: first\n"


def test_notes_are_dropped_when_an_error_follows(capsys: pytest.CaptureFixture[str]) -> None:
    show_messages()
    logger = logging.getLogger("ebft.some")
    with notes_if_it_succeeds():
        logger.warning("first")
        logger.info("progress")
        assert capsys.readouterr().err == "progress\n"
    assert capsys.readouterr().err == "note: first\n"

    def fails() -> None:
        with notes_if_it_succeeds():
            logger.warning("second")
            raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        fails()
    logger.warning("third")
    assert capsys.readouterr().err == "note: third\n"
