"""The benchmark runs, both ways agree, and its JSON has the documented fields. Nothing is said about speed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "step.py"
# Three sequences in micro-batches of two, so that the last one is smaller.
ARGUMENTS = (
    "--size tiny --context-length 20 --horizon 3 --stride 4 --samples 3 --sequences 3 --micro-batch 2 "
    "--released-micro-batch 2 --repeats 2 --warmup 0 --threads 1"
)


def run(arguments: str, json_file: Path) -> dict[str, Any]:
    command = [sys.executable, str(SCRIPT), *arguments.split(), "--json", str(json_file)]
    # One thread from the start: several test processes on few cores would wait for each other.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    finished = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return json.loads(json_file.read_text())


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run(ARGUMENTS, tmp_path_factory.mktemp("benchmark") / "step.json")


def test_documented_fields(result: dict[str, Any]) -> None:
    documented = {
        *("command", "date", "versions", "settings", "shape", "machine"),
        *("seconds", "warmup_seconds", "tokens_per_second", "flops", "matrix_rate", "utilization"),
        *("peak_memory_bytes", "speed_up", "memory_share", "equality"),
    }
    assert set(result) == documented
    assert result["command"].startswith("python benchmarks/step.py --size tiny ")
    assert result["settings"]["micro_batch"] == 2
    assert result["shape"]["anchors"] == 4
    assert result["shape"]["packed_tokens"] == 3 * (20 + 4 * 3 * 3)
    assert result["shape"]["released_tokens"] == 3 * 3 * (20 + 4 * 3)
    assert result["machine"]["threads"] == 1
    assert set(result["versions"]) == {"python", "torch", "transformers"}


def test_every_phase_is_timed(result: dict[str, Any]) -> None:
    phases = {"rollout", "features", "rewards", "update", "optimizer"}
    for way in ("packed", "released"):
        seconds = result["seconds"][way]
        assert set(seconds) == phases | {"iteration"}
        for phase in seconds.values():
            assert len(phase["runs"]) == 2
            assert 0 < phase["min"] <= phase["median"] <= phase["max"]
        assert seconds["iteration"]["min"] >= sum(seconds[phase]["min"] for phase in phases)
        assert result["peak_memory_bytes"][way] > 0
    assert set(result["speed_up"]) == phases | {"iteration"}


def test_both_ways_agree(result: dict[str, Any]) -> None:
    equality = result["equality"]
    assert equality["equal"]
    assert set(equality["relative_differences"]) == set(equality["tolerances"])
    for name, difference in equality["relative_differences"].items():
        assert difference <= equality["tolerances"][name] <= 1e-3, name
    # Two of the three sequences are checked; enough of their contexts must be comparable.
    assert equality["contexts"] == 8
    assert equality["distinct_contexts"] >= 4
