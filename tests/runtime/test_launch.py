"""What the launcher makes of the way its processes end, without torch's own launcher; tests/distributed has that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher import api

from ebft.runtime import launch


def failure(exitcode: int, second: int = 0) -> ProcessFailure:
    found = ProcessFailure(local_rank=0, pid=1, exitcode=exitcode, error_file="/nowhere")
    found.timestamp = second
    return found


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException | None], list[Any]]:
    """Makes the processes end in some way; returns what they were started with."""
    for name in (launch.LAUNCHED, "OMP_NUM_THREADS", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"):
        monkeypatch.setenv(name, "before")  # so that it is put back
        monkeypatch.delenv(name)

    def prepare(error: BaseException | None) -> list[Any]:
        started: list[Any] = []

        def elastic_launch(config: Any, python: str) -> Callable[..., None]:
            def run(*command: str) -> None:
                started.append((config.nproc_per_node, command))
                if error is not None:
                    raise error

            return run

        monkeypatch.setattr(api, "elastic_launch", elastic_launch)
        return started

    return prepare


def test_all_went_well(ends: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    started = ends(None)
    assert launch.launch(3, "sft", ["--model", "m"]) == 0
    assert started == [(3, ("-m", "ebft.cli", "sft", "--model", "m"))]
    assert os.environ[launch.LAUNCHED] == str(os.getpid())
    assert os.environ["OMP_NUM_THREADS"] == "2", "a share of the cores each"


def test_the_exit_code_of_the_first_that_failed(ends: Callable[..., list[Any]]) -> None:
    failures: Any = {0: failure(-signal.SIGTERM, second=9), 1: failure(2, second=5)}
    ends(ChildFailedError("ebft", failures))
    assert launch.launch(2, "train", []) == 2


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGKILL, r"process 1 of 2 was killed \(SIGKILL\); the machine may be out of memory; the others were"),
        (signal.SIGSEGV, r"process 1 of 2 was killed \(SIGSEGV\); the others were stopped"),
    ],
)
def test_a_process_that_was_killed_is_named(number: signal.Signals, words: str, ends: Callable[..., list[Any]]) -> None:
    failures: Any = {0: failure(-signal.SIGTERM), 1: failure(-number)}
    ends(ChildFailedError("ebft", failures))
    with pytest.raises(launch.ProcessKilled, match=words):
        launch.launch(2, "train", [])


def test_signals_to_the_launcher(ends: Callable[..., list[Any]]) -> None:
    ends(SignalException("", signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        launch.launch(2, "train", [])
    ends(SignalException("", signal.SIGTERM))
    assert launch.launch(2, "train", []) == 128 + signal.SIGTERM


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
@pytest.mark.parametrize("alive", [True, False])
def test_a_launcher_that_was_killed_before_its_process_began(alive: bool) -> None:
    """The kernel tells nobody of a death that came before the question."""
    launcher = os.getpid() if alive else 1
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), launch.LAUNCHED: str(launcher)}
    asked = subprocess.run([sys.executable, "-m", "ebft.cli", "--version"], env=environment, capture_output=True)
    assert asked.returncode == (0 if alive else -signal.SIGTERM)
