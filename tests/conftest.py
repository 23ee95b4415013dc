from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch

from tests.baselines.runs import ROWS, make_model, write_rows

PLACES = [
    pytest.param(("cpu", "sdpa"), id="cpu-sdpa"),
    pytest.param(("cuda", "sdpa"), id="cuda-sdpa", marks=pytest.mark.cuda),
    pytest.param(("cuda", "flex"), id="cuda-flex", marks=pytest.mark.cuda),
]


@pytest.fixture(params=PLACES)
def device_and_backend(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param


@pytest.fixture
def tolerance(device_and_backend: tuple[str, str]) -> float:
    """In float32: rounding on a CPU, a little more on a GPU, whose kernels sum in another order."""
    return 1e-5 if device_and_backend[0] == "cpu" else 1e-4


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if "cuda" in item.keywords:
            item.add_marker(skip)


def pytest_configure() -> None:
    # What is started in the background ignores Ctrl-C, and so would the programs that tests start and interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EBFT_CACHE", str(tmp_path / "cache"))
    import datasets
    import huggingface_hub

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("sums") / "rows.jsonl", ROWS)
