"""What of the library's messages reaches standard error, what progress looks like, and what is said of the machine."""

import logging
import os
from collections.abc import Iterator
from unittest.mock import Mock

import huggingface_hub
import pytest
from huggingface_hub import constants

from ebft.runtime.machine import hub_unreachable
from ebft.runtime.messages import progress, show_messages

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


@pytest.mark.parametrize(("level", "shown"), [("debug", 4), ("warning", 2), ("critical", 0), ("passive", 3)])
def test_levels_and_prefix(level: str, shown: int, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):  # however often it is called, once
        show_messages(level)  # passive is a word of transformers
    for name in ("debug", "info", "warning", "error"):
        getattr(logger, name)("%s message", name)
    printed, lines = capsys.readouterr(), ["debug", "info", "note: warning", "note: error"]
    assert printed.err.splitlines() == [f"{line} message" for line in lines[4 - shown :]]
    assert printed.out == ""


def test_in_a_log_file_a_line_a_minute(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ebft")
    now = [1000.0]
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    with progress("scoring", 1000, done=200) as advance:
        for _ in range(5):
            now[0] += 30
            advance(100)
    assert [line.partition(" [")[0] for line in caplog.messages] == [f"scoring: {n} of 1000" for n in (400, 600)]
    assert caplog.messages[0].endswith("[01:00<03:00,  3.33it/s]")


@pytest.mark.parametrize("error", [OSError("no route"), TimeoutError()])
def test_a_hub_that_does_not_answer_is_not_asked_again(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Mock(side_effect=error)
    monkeypatch.setattr(huggingface_hub, "get_session", lambda: Mock(head=asked))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "0.2")
    hub_unreachable.cache_clear()
    for _ in range(2):
        assert (hub_unreachable() or "").startswith(f"{constants.ENDPOINT} cannot be reached: ")
    asked.assert_called_once_with(constants.ENDPOINT, timeout=0.2)
    assert (constants.HF_HUB_OFFLINE, os.environ["HF_HUB_OFFLINE"]) == (True, "1")
    hub_unreachable.cache_clear()
    assert hub_unreachable() == "HF_HUB_OFFLINE is set"
    hub_unreachable.cache_clear()
