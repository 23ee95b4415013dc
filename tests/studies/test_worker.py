"""Jobs one after the other in one process: each its own log and exit code, and the same weights as alone."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ebft.studies import worker
from ebft.studies.worker import Worker
from tests.baselines.runs import run, write_recipe
from tests.studies.commands import sweep

STUB = """
import os, sys, time
from ebft.studies import worker

def ebft(arguments):
    print("job", arguments, os.getpid())
    os.write(2, b"past python\\n")
    how, = arguments
    if how == "raise":
        raise OSError("broken")
    if how == "exit":
        sys.exit(2)
    if how == "die":
        os._exit(9)
    try:
        time.sleep(60 if how == "wait" else 0)
    except KeyboardInterrupt:
        return 130
    return int(how)

sys.exit(worker.serve(ebft))
"""


@pytest.fixture
def one(monkeypatch: pytest.MonkeyPatch) -> Worker:
    monkeypatch.setattr(worker, "_ENTRY", ("-c", STUB))
    return Worker(os.environ)


def code_of(one: Worker) -> int:
    deadline = time.monotonic() + 60
    while (code := one.poll()) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert code is not None
    return code


def test_codes_and_logs(one: Worker, tmp_path: Path) -> None:
    for how, expected in {"0": 0, "3": 3, "exit": 2, "raise": 1}.items():
        log = tmp_path / how
        log.write_text("$ the command\n")
        one.begin([how], log)
        assert code_of(one) == expected
        assert log.read_text().startswith("$ the command\n")
        assert f"job ['{how}'] {one.process.pid}\n" in log.read_text(), "in another process"
        assert "past python\n" in log.read_text()
    assert "OSError: broken" in (tmp_path / "raise").read_text()
    one.dismiss()
    assert one.process.returncode == 0


def test_one_that_dies_with_its_job(one: Worker, tmp_path: Path) -> None:
    one.begin(["die"], tmp_path / "log")
    assert code_of(one) == 9


def test_one_whose_job_is_stopped_ends(one: Worker, tmp_path: Path) -> None:
    log = tmp_path / "log"
    one.begin(["wait"], log)
    while "past python" not in (log.read_text() if log.exists() else ""):
        time.sleep(0.01)
    time.sleep(0.2)
    one.send_signal(signal.SIGINT)
    assert one.wait() == 130


@pytest.mark.usefixtures("offline")
def test_real_runs_give_the_weights_that_they_give_alone(
    tiny: Path, sums: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a run that failed."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    recipe = write_recipe(tmp_path, tiny, sums, output_dir=str(tmp_path / "out"), max_steps=2)
    broken = tmp_path / "broken.jsonl"  # further down than anybody looks before the first run
    broken.write_text(sums.read_text() + "{")
    assert sweep(recipe, "--set", f"dataset={sums},{broken}", "--set", "seed=1,2", "--reuse-processes") == 1
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for seed in (1, 2):
        assert run("train", recipe, tmp_path / "alone" / str(seed), "--seed", seed) == 0
        (folder,) = [p for p in (tmp_path / "out").glob(f"*seed={seed}") if (p / "final").exists()]
        found = load_file(folder / "final" / "model.safetensors")
        expected = load_file(tmp_path / "alone" / str(seed) / "final" / "model.safetensors")
        assert all(torch.equal(found[name], value) for name, value in expected.items())
    torch.set_num_threads(threads)
