"""Points on this machine: one at a time on each GPU, all stopped by Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from tests.studies.commands import attempts, sweep
from tests.studies.conftest import STUB

pytestmark = pytest.mark.usefixtures("offline")


@pytest.mark.usefixtures("stub")
def test_one_point_at_a_time_on_each_gpu(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert sweep(recipe, "--set", "learning_rate=1,2,3,4,5", "--use_cpu", "false") == 0
    spans: dict[str, list[tuple[float, float]]] = {}
    for run in (tmp_path / "out").glob("learning_rate=*"):
        start, end = attempts(run)
        spans.setdefault(start["CUDA_VISIBLE_DEVICES"], []).append((start["start"], end["end"]))
    assert set(spans) == {"4", "6"}
    for on_one_gpu in spans.values():
        ordered = sorted(on_one_gpu)
        assert all(before[1] <= after[0] for before, after in pairwise(ordered))
    everything = sorted(span for on_one in spans.values() for span in on_one)
    assert any(a[1] > b[0] for a, b in pairwise(everything)), "never two at once"


def test_ctrl_c_stops_the_points_and_says_how_to_resume(recipe: Path, tmp_path: Path) -> None:
    code = f"from ebft import cli; from ebft.studies import local_launcher; local_launcher.ENTRY = ({str(STUB)!r},); "
    code += "from ebft.studies import inputs; inputs.check_points = lambda points, elsewhere: None; "
    code += "import sys; sys.exit(cli.main(sys.argv[1:]))"
    arguments = [
        "sweep",
        "--config",
        str(recipe),
        "--set",
        "run_name=wait",
        "--set",
        "learning_rate=1,2",
        "--jobs",
        "2",
    ]
    process = subprocess.Popen([sys.executable, "-c", code, *arguments], stderr=subprocess.PIPE, text=True)
    runs = [tmp_path / "out" / f"run_name=wait,learning_rate={rate}" for rate in (1, 2)]
    deadline = time.monotonic() + 60
    while not all((run / "attempts.jsonl").exists() for run in runs) and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    error = process.communicate(timeout=30)[1]
    assert process.returncode == 130
    assert "stopped; the same command resumes from here" in error
    assert all((run / "interrupted").exists() for run in runs)
