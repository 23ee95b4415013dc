"""What of the library's messages reaches standard error, what progress looks like, and what is said of the machine."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator

import huggingface_hub
import pytest
from huggingface_hub import constants
from huggingface_hub.utils import close_session

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


# ---- the machine -----------------------------------------------------------------------------------------------------


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A place where nobody answers, nothing asked yet, and no session made with another environment."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "0.2")
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    hub_unreachable.cache_clear()
    close_session()
    with socket.socket() as taken:  # bound, and so nobody else's
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{taken.getsockname()[1]}")
        yield taken
    hub_unreachable.cache_clear()
    close_session()


@pytest.mark.parametrize("silent", [False, True])
def test_a_hub_that_does_not_answer_is_not_asked_again(
    silent: bool, hub: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    if silent:
        hub.listen()
    assert (hub_unreachable() or "").startswith(f"{constants.ENDPOINT} cannot be reached: ")
    assert (constants.HF_HUB_OFFLINE, os.environ["HF_HUB_OFFLINE"]) == (True, "1")
    monkeypatch.setattr(huggingface_hub, "get_session", lambda: pytest.fail("asked"))
    assert "cannot be reached" in (hub_unreachable() or ""), "the reason stays"
    hub_unreachable.cache_clear()
    assert hub_unreachable() == "HF_HUB_OFFLINE is set"
