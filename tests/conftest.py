import gc
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure

from ebft.runtime.machine import hub_unreachable
from tests.baselines.runs import ROWS, make_model, write_rows
from tests.models import EXTRA_CONFIGS, FAMILIES


@pytest.fixture(
    params=[
        pytest.param(("cpu", "sdpa"), id="cpu-sdpa"),
        pytest.param(("cuda", "sdpa"), id="cuda-sdpa", marks=pytest.mark.cuda),
        pytest.param(("cuda", "flex"), id="cuda-flex", marks=pytest.mark.cuda),
    ]
)
def device_and_backend(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param


@pytest.fixture(params=(*FAMILIES, *EXTRA_CONFIGS))
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def tolerance(device_and_backend: tuple[str, str]) -> float:
    """In float32: rounding on a CPU, a little more on a GPU, whose kernels sum in another order."""
    return 1e-5 if device_and_backend[0] == "cpu" else 1e-4


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "cuda" in item.keywords and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_configure() -> None:
    # What is started in the background ignores Ctrl-C, and so would the programs that tests start and interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)  # models this small are faster so, and bit-exact on any machine


def pytest_collection_finish() -> None:
    # Every run collects garbage: not through all that was imported, hundreds of times.
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def pictures(request: pytest.FixtureRequest) -> Iterator[None]:
    """Figures are put together in every test, but rendered only in those marked `pictures`.

    To render the curves takes as long as the rest of a small run. What is written instead is no PNG: a test that looks
    at a picture fails without the mark.
    """
    with pytest.MonkeyPatch.context() as patch:  # one of its own, which no test undoes
        if request.node.get_closest_marker("pictures") is None:
            patch.setattr(Figure, "tight_layout", lambda *_, **__: None)
            patch.setattr(Figure, "savefig", _write_no_picture)
        yield


def _write_no_picture(figure: Figure, file: Any, **options: Any) -> None:
    (file.write if hasattr(file, "write") else Path(file).write_bytes)(b"not rendered")


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EBFT_CACHE", str(tmp_path / "cache"))
    import datasets
    import huggingface_hub

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    hub_unreachable.cache_clear()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("sums") / "rows.jsonl", ROWS)
