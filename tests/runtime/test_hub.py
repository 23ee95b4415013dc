"""Whether the hub is there: a refused, a silent and an answering one, a proxy, and the cache."""

from __future__ import annotations

import http.server
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants, is_offline_mode
from huggingface_hub.utils import close_session

from ebft.runtime import hub


class Refusing(http.server.BaseHTTPRequestHandler):
    """Answers, though with an error: it is there."""

    def do_HEAD(self) -> None:
        self.send_response(503)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing asked yet, and no session made with another environment."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    hub._ask.cache_clear()
    close_session()
    yield
    hub._ask.cache_clear()
    close_session()


@pytest.fixture
def server() -> Iterator[str]:
    with http.server.HTTPServer(("127.0.0.1", 0), Refusing) as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{found.server_port}"
        found.shutdown()


def test_one_that_answers_is_there_whatever_it_says(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", server)
    assert hub.why_unreachable() is None


def test_a_proxy_is_asked_where_one_is_set(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://hub.invalid")
    monkeypatch.setenv("HTTP_PROXY", server)
    assert hub.why_unreachable() is None


def test_one_that_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:  # bound, and so nobody else's; not listening
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{taken.getsockname()[1]}")
        assert "cannot be reached: " in (hub.why_unreachable() or "")
        assert constants.ENDPOINT in (hub.why_unreachable() or "")


def test_one_that_never_answers_is_waited_for_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "1")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        began = time.monotonic()
        assert hub.why_unreachable() is not None
        assert time.monotonic() - began < 4


def test_a_name_server_that_never_answers_is_waited_for_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "1")
    monkeypatch.setattr(constants, "ENDPOINT", "http://hub.invalid")
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: time.sleep(20))
    began = time.monotonic()
    assert hub.why_unreachable() == "http://hub.invalid cannot be reached: no answer in 1 seconds"
    assert time.monotonic() - began < 4


def test_it_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(huggingface_hub, "get_session", lambda: calls.append(1))
    assert hub.why_unreachable() == hub.why_unreachable() is not None
    assert len(calls) == 1


def test_offline_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub, "get_session", lambda: pytest.fail("asked"))
    assert hub.why_unreachable() == "HF_HUB_OFFLINE is set"


def test_afterwards_nothing_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    hub.use_cache_only()
    assert is_offline_mode()
    assert os.environ["HF_HUB_OFFLINE"] == "1"


@pytest.mark.parametrize("file", hub.FILES)
def test_what_was_downloaded_before_is_in_the_cache(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert not hub.in_cache("some/model")
    store(tmp_path, "some/model", file)
    assert hub.in_cache("some/model")
    assert not hub.in_cache("some/other")


def store(cache: Path, name: str, file: str) -> None:
    """As the hub's library keeps a downloaded file."""
    folder = cache / f"models--{name.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("c0ffee")
    (folder / "snapshots" / "c0ffee").mkdir(parents=True)
    (folder / "snapshots" / "c0ffee" / file).write_text("{}")
