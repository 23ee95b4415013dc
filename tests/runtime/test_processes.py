"""What processes say of each other, and how launched ones end; tests/distributed has several."""

import os
import signal
import subprocess
import sys
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher import api

from ebft.runtime import launch, processes


def test_one_process_loses_no_other() -> None:
    assert not processes.lost_another(RuntimeError("Connection closed by peer"))


def failures(*exitcodes: int) -> BaseException:
    """In this order."""
    found = [ProcessFailure(local_rank=0, pid=1, exitcode=code, error_file="/nowhere") for code in exitcodes]
    for second, failure in enumerate(found):
        failure.timestamp = second
    return ChildFailedError("ebft", dict(enumerate(found)))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (None, 0),
        (failures(2, -signal.SIGTERM), 2),  # of the first that failed
        (SignalException("", signal.SIGINT), 130),
    ],
)
def test_how_launched_processes_end(error: Any, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """tests/distributed has one that is killed."""
    for name in (launch.LAUNCHED, "OMP_NUM_THREADS", "TORCHELASTIC_SIGNALS_TO_HANDLE"):
        monkeypatch.setenv(name, "before")  # so that it is put back
        monkeypatch.delenv(name)
    run = Mock(side_effect=error)
    monkeypatch.setattr(api, "elastic_launch", lambda config, python: partial(run, config.nproc_per_node))
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert launch.launch(2, "sft", ["--model", "m"]) == code
    run.assert_called_once_with(2, "-m", "ebft.cli", "sft", "--model", "m")
    assert os.environ[launch.LAUNCHED] == str(os.getpid())
    assert os.environ["OMP_NUM_THREADS"] == "2", "a share of the cores each"


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
def test_a_launcher_that_was_killed_before_its_process_began() -> None:
    """The kernel tells nobody of a death that came before the question."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), launch.LAUNCHED: "1"}
    asked = subprocess.run([sys.executable, "-m", "ebft.cli", "--version"], env=environment, capture_output=True)
    assert asked.returncode == -signal.SIGTERM
