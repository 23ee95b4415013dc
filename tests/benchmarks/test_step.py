"""The benchmark runs, both ways agree, and its JSON has the documented fields. Nothing is said about speed."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "step.py"
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


def script_named(name: str) -> Any:
    """A benchmark as a module; they import each other by these names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPT.parent))
        return importlib.import_module(name)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run(ARGUMENTS, tmp_path_factory.mktemp("benchmark") / "step.json")


def test_documented_fields(result: dict[str, Any]) -> None:
    documented = {
        *("command", "date", "commit", "versions", "settings", "shape", "machine"),
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


@pytest.mark.parametrize("more", ["", "--lora"])
def test_counted_operations_are_those_of_the_products(more: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against torch's own count of what runs. The counts leave out attention to masked pairs, which a dense product
    computes all the same, so they may be lower, by no more than that."""
    from torch.utils.flop_counter import FlopCounterMode

    step = script_named("step")

    def product(_: Any, a: Any, b: Any, **kwargs: Any) -> int:
        return 2 * a[0] * a[1] * b[1]

    in_place = {torch.ops.aten.addmm_: product}  # torch counts the product but not this form of it
    arguments = "--size tiny --context-length 20 --horizon 3 --stride 4 --samples 3 --sequences 2 --skip-released"
    monkeypatch.setattr(sys, "argv", ["step.py", *arguments.split(), *more.split()])
    settings, _ = step.parse_arguments()
    way = step.build_way("packed", step.Training(settings).model, settings)
    contexts = step.random_contexts(settings, 512)
    expected = step.count_flops(settings)
    sequences = way.rollout(contexts)
    generated, truth = way.features(sequences)
    advantages = way.advantages(sequences, generated, truth)
    phases = {
        "rollout": lambda: way.rollout(contexts),
        "features": lambda: way.features(sequences),
        "update": lambda: way.update(sequences, advantages),
    }
    for phase, run_phase in phases.items():
        with FlopCounterMode(display=False, custom_mapping=in_place) as counter:
            run_phase()
        assert 0.8 <= expected[phase] / counter.get_total_flops() <= 1.02, phase


@pytest.mark.parametrize(
    ("script", "arguments", "words"),
    [
        ("step", "--size foo", "invalid choice: 'foo'"),
        ("step", "--horizon -1", "-1 is not a whole number above 0"),
        ("step", "--sequences 0", "0 is not a whole number above 0"),
        ("step", "--horizon 300", "does not fit in sequences of 256 tokens"),
        ("step", "--samples 2", "needs at least 3"),
        ("step", "--backend flex", "--backend flex needs --device cuda"),
        ("step", "--released-repeats 2", "on a CPU the two ways take turns"),
        ("step", "--gamma -1", "must not be negative"),
        ("step", "--json {folder}", "Is a directory"),
        ("grid", "--show {folder}/nothing.json", "No such file"),
        ("grid", "--show {folder}/step.json", "is not a result of grid.py"),
        ("grid", "--show {folder}/broken.json", "is not JSON"),
        ("grid", "--device cpu --size tiny --json {folder}/grid.json", "measured with other settings: size, repeats"),
        ("grid", "--at-once 0", "0 is not a whole number above 0"),
    ],
)
def test_errors_are_one_line(
    script: str, arguments: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    (tmp_path / "step.json").write_text("{}")
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "grid.json").write_text(json.dumps({"rows": [], "settings": {"size": "small-cpu", "repeats": 1}}))
    monkeypatch.setattr(sys, "argv", [f"{script}.py", *arguments.format(folder=tmp_path).split()])
    module = script_named(script)
    with pytest.raises(SystemExit) as ended:
        module.parse_arguments() if script == "step" else module.main()
    assert ended.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert words in lines[0]


def test_the_grid_goes_on_tries_again_what_failed_and_survives_a_lost_process(tmp_path: Path) -> None:
    file = tmp_path / "grid.json"
    options = "--size tiny --device cpu --sequences 1 --repeats 1 --contexts 24 --horizons 4 8 --at-once 2"
    command = [sys.executable, str(SCRIPT.with_name("grid.py")), *options.split(), "--json", str(file), "--samples"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def measured(*samples: str) -> str:
        done = subprocess.run([*command, *samples], env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "its process ended with code 2" in measured("2"), "step.py wants 3 samples"
    assert [row.get("error") is None for row in json.loads(file.read_text())["rows"]] == [False, False]
    assert measured("3").count(" packed tokens") == 2
    rows = json.loads(file.read_text())["rows"]
    assert [(row["samples"], row["horizon"]) for row in rows] == [(3, 4), (3, 8)], "what failed is not kept"
    assert measured("3") == ""


def test_the_grid_has_every_setting_once_and_shows_what_is_missing() -> None:
    grid = script_named("grid")
    points = grid.settings_of_grid()
    assert len(points) == 5 * 3 * 4 + 4
    dealt = [point for group in grid.groups_of(points, 7) for point in group]
    assert sorted(dealt, key=str) == sorted(points, key=str)
    assert max(len(group) for group in grid.groups_of(points, 7)) <= 7
    rows = [
        {**point, "seconds": {"iteration": number / 10}, "peak_memory_bytes": 2**30 * number}
        for number, point in enumerate(points)
    ]
    shown = grid.tables({"rows": rows[1:]})
    assert shown.count("not measured") == 1  # the first one
    assert "0.10 s, 1.0 GiB" in shown
    assert "6.30 s, 63.0 GiB" in shown
