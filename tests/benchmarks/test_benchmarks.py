"""The benchmarks run, both implementations agree, and counted operations are those of torch. Speed is not tested."""

from __future__ import annotations

import json
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import answers
import grid
import picture
import step
from flops import count_flops
from iteration_time import Run
from packed_implementation import PackedImplementation
from packed_work import Work, work_of
from shapes import SIZES
from step_settings import Settings, parse_arguments
from tests.tiny_tokenizer import save_tiny_model

RESULTS = {
    file.stem: result
    for file in sorted((Path(step.__file__).parent / "results").glob("step-*.json"))
    if "flops" in (result := json.loads(file.read_text()))  # the oldest were measured before operations were counted
}


def run(program: Any, arguments: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [program.__file__, *arguments.split()])
    assert not program.main()


def test_a_step_of_both_implementations_is_timed_and_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three sequences in micro-batches of two, so that the last one is smaller."""
    arguments = "--size tiny --context-length 20 --horizon 3 --stride 4 --samples 3 --sequences 3 --micro-batch 2 "
    arguments += f"--released-micro-batch 2 --repeats 2 --warmup 0 --threads 1 --json {tmp_path}/step.json"
    run(step, arguments, monkeypatch)
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


@pytest.mark.parametrize("more", ["--no-trees", "--no-trees --lora", "", "--sharing", "--sharing --lora"])
def test_counted_operations_are_those_of_the_products(more: str) -> None:
    """The counts leave out attention to masked pairs, which a dense product computes all the same, so they may be
    lower than torch's, by no more than that."""

    def product(_: Any, a: Any, b: Any, **kwargs: Any) -> int:
        return 2 * a[0] * a[1] * b[1]

    def attention(*shapes: Any, products: int = 2, **kwargs: Any) -> int:
        """Products of queries with keys, and with values; backward, the four gradients of those two."""
        q, k = shapes[-3:-1] if products == 2 else shapes[1:3]
        return products * 2 * q[0] * q[1] * q[2] * q[3] * k[2]

    aten = torch.ops.aten
    uncounted = {  # torch counts neither the product in this form nor a CPU's attention
        aten.addmm_: product,
        aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: attention(q, k, v),
        aten._scaled_dot_product_flash_attention_for_cpu_backward: (
            lambda grad, q, k, v, *_, **__: attention(grad, q, k, v, products=4)
        ),
    }
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
    for phase, run_phase in phases.items():
        with FlopCounterMode(display=False, custom_mapping=uncounted) as counter:
            run_phase()
        assert 0.75 <= expected[phase] / counter.get_total_flops() <= 1.02, phase


@pytest.mark.parametrize("name", RESULTS)
def test_committed_results_stay_comparable(name: str) -> None:
    result = RESULTS[name]
    known = {field.name for field in fields(Settings)} & set(result["settings"])
    settings = Settings(**{name: result["settings"][name] for name in known})
    untreed = Work.untreed(settings.layout, settings.sequences)
    work = Work(**vars(untreed) | result.get("work", {}))  # rollouts did not share at first
    assert count_flops(SIZES[settings.size], settings, work) == pytest.approx(result["flops"], rel=0.01)


def test_both_ways_to_generate_write_the_same_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_tiny_model(tmp_path / "model")
    test, solution = "def check(candidate):\n    assert candidate(1) == 1\n", "    return x\n"
    rows = [
        {"task_id": f"HumanEval/{n}", "prompt": f'def f{n}(x):\n    """{"Long. " * n}"""\n', "entry_point": f"f{n}"}
        | {"test": test, "canonical_solution": solution}
        for n in range(3)
    ]
    (tmp_path / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = f"--model {tmp_path}/model --humaneval {tmp_path}/problems.jsonl --samples 3 --batch-sizes 2 9 "
    run(answers, f"{arguments} --max-new-tokens 12 --json {tmp_path}/result.json", monkeypatch)
    measured = json.loads((tmp_path / "result.json").read_text())["rows"]
    assert [(row["batch_size"], row["answers"], row["same_answers"]) for row in measured] == [(2, 9, 1), (9, 9, 1)]


def test_the_grid_resumes_and_retries_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "grid.json"
    options = f"--size tiny --device cpu --sequences 1 --repeats 1 --contexts 24 --horizons 4 --at-once 2 --json {file}"
    run(grid, f"{options} --samples 2", monkeypatch)
    assert "its process ended with code 2" in capsys.readouterr().out, "step.py wants 3 samples"
    run(grid, f"{options} --samples 3", monkeypatch)
    assert [(row["samples"], "error" in row) for row in json.loads(file.read_text())["rows"]] == [(3, False)]
    capsys.readouterr()
    run(grid, f"{options} --samples 3", monkeypatch)
    assert capsys.readouterr().out == ""


@pytest.mark.pictures
@pytest.mark.parametrize("name", ["step-h200-smollm2-135m.json", "grid-h200-smollm2-135m.json"])
def test_a_committed_result_is_drawn(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = Path(step.__file__).parent / "results"
    run(picture, f"{results / name} --output {tmp_path}/picture.png", monkeypatch)
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_errors_are_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(step, "--size tiny --horizon 300", monkeypatch)
    assert ended.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "use a smaller horizon or stride" in line
