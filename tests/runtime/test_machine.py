"""Whether the hub is there, and what is said when a GPU is full."""

from __future__ import annotations

import http.server
import os
import socket
import threading
from collections.abc import Iterator

import huggingface_hub
import pytest
import torch
from huggingface_hub import constants, is_offline_mode
from huggingface_hub.utils import close_session

from ebft.runtime.machine import hub_unreachable, lack_of_gpu_memory


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
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    hub_unreachable.cache_clear()
    close_session()
    yield
    hub_unreachable.cache_clear()
    close_session()


def test_one_that_answers_is_there_whatever_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        assert hub_unreachable() is None
        server.shutdown()
    assert not is_offline_mode()


def test_one_that_refuses_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:  # bound, and so nobody else's; not listening
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{taken.getsockname()[1]}")
        assert (hub_unreachable() or "").startswith(f"{constants.ENDPOINT} cannot be reached: ")
    assert is_offline_mode()
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    monkeypatch.setattr(huggingface_hub, "get_session", lambda: pytest.fail("asked"))
    assert "cannot be reached" in (hub_unreachable() or ""), "the reason stays"


def test_one_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "0.2")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert "cannot be reached" in (hub_unreachable() or "")


def test_offline_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub, "get_session", lambda: pytest.fail("asked"))
    assert hub_unreachable() == "HF_HUB_OFFLINE is set"


def test_a_full_gpu() -> None:
    said = "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has 79.1 GiB, of which 1.2 GiB is free. Process 7 has"
    found = lack_of_gpu_memory(torch.OutOfMemoryError(said))
    assert found == said.removesuffix(". Process 7 has")
    assert lack_of_gpu_memory(RuntimeError(said)) is None
