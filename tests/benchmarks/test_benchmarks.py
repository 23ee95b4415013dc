"""The benchmark of a step runs, both implementations agree, and counted operations are torch's. Speed is not tested."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import step
from cpu_memory import measure_cpu_memory
from flops import count_flops
from iteration_time import Run
from packed_implementation import PackedImplementation
from packed_work import work_of
from shapes import SIZES
from step_settings import parse_arguments


def test_a_step_of_both_implementations_is_timed_and_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three sequences in micro-batches of two, so that the last one is smaller."""
    arguments = "--size tiny --context-length 20 --horizon 3 --stride 4 --samples 3 --sequences 3 --micro-batch 2 "
    arguments += f"--released-micro-batch 2 --repeats 2 --warmup 0 --threads 1 --json {tmp_path}/step.json"
    monkeypatch.setattr(sys, "argv", [step.__file__, *arguments.split()])
    # In this process, whose peak may have been higher before; otherwise one of its own, which imports everything anew.
    settings, _ = parse_arguments(arguments.split())
    peaks = {name: 1 + measure_cpu_memory(name, settings) for name in settings.names}
    assert all(peak > 0 for peak in peaks.values())
    monkeypatch.setattr(step, "measure_in_new_process", lambda _: peaks)
    assert not step.main()
    result = json.loads((tmp_path / "step.json").read_text())
    assert result["shape"]["packed_tokens"] == 3 * (20 + 4 * 3 * 3)
    assert result["shape"]["released_tokens"] == 3 * 3 * (20 + 4 * 3)
    phases = {"rollout", "features", "rewards", "update", "optimizer"}
    for name in ("packed", "untreed", "released"):
        seconds = result["seconds"][name]
        assert set(seconds) == phases | {"iteration"}
        assert all(len(phase["runs"]) == 2 and 0 < phase["min"] <= phase["median"] for phase in seconds.values())
    assert set(result["speed_up"]) == set(result["speed_up_by_trees"]) == phases | {"iteration"}
    equality = result["equality"]
    assert equality["equal"]
    for name, difference in equality["relative_differences"].items():
        assert difference <= equality["tolerances"][name] <= 1e-3, name
    # Two of the three sequences are checked; enough of their contexts must be comparable.
    assert equality["contexts"] == 8
    assert equality["distinct_contexts"] >= 4


@pytest.mark.parametrize("more", ["--no-trees", "--sharing --lora"])
def test_counted_operations_are_those_of_the_products(more: str) -> None:
    """The counts leave out attention to masked pairs, which a dense product computes all the same, so they may be
    lower than torch's, by no more than that."""

    def product(_: Any, a: Any, b: Any, **kwargs: Any) -> int:
        return 2 * a[0] * a[1] * b[1]

    arguments = "--size tiny --context-length 20 --horizon 3 --stride 4 --samples 3 --sequences 2 --skip-released"
    settings, _ = parse_arguments([*arguments.split(), *more.split()])
    measured = Run("packed", settings)
    packed = measured.implementation
    assert isinstance(packed, PackedImplementation)
    sequences = packed.rollout(measured.contexts)
    expected = count_flops(SIZES["tiny"], settings, work_of(packed))
    generated, truth = packed.features(sequences)
    advantages = packed.advantages(sequences, generated, truth)
    packed.step = 0  # so that the same completions are drawn again
    phases = {
        "rollout": lambda: packed.rollout(measured.contexts),
        "features": lambda: packed.features(sequences),
        "update": lambda: packed.update(sequences, advantages),
    }
    uncounted = {torch.ops.aten.addmm_: product}  # by torch, in this form, nor is a CPU's own attention
    for phase, run_phase in phases.items():
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False, custom_mapping=uncounted) as counter:
            run_phase()
        assert 0.75 <= expected[phase] / counter.get_total_flops() <= 1.02, phase
