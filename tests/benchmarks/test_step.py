"""The benchmark runs, both implementations agree, and its JSON has the documented fields. Speed is not tested."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

# Three sequences in micro-batches of two, so that the last one is smaller.
ARGUMENTS = (
    "--size tiny --context-length 20 --horizon 3 --stride 4 --samples 3 --sequences 3 --micro-batch 2 "
    "--released-micro-batch 2 --repeats 2 --warmup 0 --threads 1"
)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory, run_program: Callable[[str, str], str]) -> dict[str, Any]:
    file = tmp_path_factory.mktemp("benchmark") / "step.json"
    run_program("step.py", f"{ARGUMENTS} --json {file}")
    return json.loads(file.read_text())


def test_documented_fields(result: dict[str, Any]) -> None:
    documented = {
        *("command", "date", "commit", "versions", "settings", "shape", "machine"),
        *("seconds", "warmup_seconds", "tokens_per_second", "flops", "matrix_rate", "utilization"),
        *("peak_memory_bytes", "speed_up", "speed_up_by_trees", "work", "memory_share", "equality"),
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
    for name in ("packed", "untreed", "released"):
        seconds = result["seconds"][name]
        assert set(seconds) == phases | {"iteration"}
        for phase in seconds.values():
            assert len(phase["runs"]) == 2
            assert 0 < phase["min"] <= phase["median"] <= phase["max"]
        assert seconds["iteration"]["min"] >= sum(seconds[phase]["min"] for phase in phases)
        assert isinstance(result["peak_memory_bytes"][name], int), "too small here to say more"
    assert set(result["speed_up"]) == set(result["speed_up_by_trees"]) == phases | {"iteration"}


def test_both_implementations_agree(result: dict[str, Any]) -> None:
    equality = result["equality"]
    assert equality["equal"]
    assert set(equality["relative_differences"]) == set(equality["tolerances"])
    for name, difference in equality["relative_differences"].items():
        assert difference <= equality["tolerances"][name] <= 1e-3, name
    # Two of the three sequences are checked; enough of their contexts must be comparable.
    assert equality["contexts"] == 8
    assert equality["distinct_contexts"] >= 4
